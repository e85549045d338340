import { EventLines } from '../../../../core/answers/event-lines.ts'
import { deltaOf, type HostedChatEvent } from '../../../../core/answers/hosted-chat-events.ts'
import type { Delta, EngineFields, TokenUsage } from '../../../../core/contracts/engines.ts'

/*
 * An answer that goes on at another member. What has come of it is kept, becomes the beginning of the assistant's message
 * (or the end of the prompt) for the next member, and what that adds is joined to it.
 */

/** Characters that are kept of an answer; a longer one does not go on elsewhere. */
const MAX_KEPT = 2 ** 20
/** Bytes that are kept as they came: looking for the text in them can wait until it is needed, or until they are more. */
const MAX_UNREAD = 2 ** 17

/** What engines call the limit of an answer's tokens; the first one that a request has counts. */
const TOKEN_LIMITS = ['max_tokens', 'n_predict', 'max_completion_tokens', 'max_output_tokens']

/** An event of hosted chat with what llama-server adds to it. */
interface StreamEvent extends HostedChatEvent {
  usage?: HostedUsage
  timings?: Timings
  prompt_progress?: unknown
  [field: string]: unknown
}
interface HostedUsage {
  prompt_tokens: number
  completion_tokens: number
  prompt_tokens_details?: { cached_tokens?: number }
}
type Timings = Record<string, number>

/** What the next member is asked. */
interface Continuation {
  request: EngineFields
  /** What its prompt has to end with; a template that cuts or leaves out what was said would have it said again. */
  ending: string
}

/** How an answer ends of which all tokens have come. */
export interface Ending {
  completionTokens: number
  /** Undefined where no member has said so. */
  prompt: Pick<TokenUsage, 'promptTokens' | 'cachedTokens'> | undefined
}

/** What has come of an answer, and what joins to it what another member adds. */
export class KeptAnswer {
  readonly #call: 'chat' | 'completion'
  readonly #request: EngineFields
  #content = ''
  #thinking = ''
  /** Pieces with text; nearly all of them are one token each. */
  #pieces = 0
  /** Whether it has what no other member can go on with. */
  #isFixed = false
  /** Why it ended was said, and of that the tokens too. */
  #isFinished = false
  #isCounted = false
  /** Tokens of the prompt, where the first member has counted them. */
  #prompt: Pick<TokenUsage, 'promptTokens' | 'cachedTokens'> | undefined
  #unread: Buffer[] = []
  #unreadBytes = 0
  /** The names in each of its events, as the first one has them. */
  #names: EngineFields | undefined
  #began = 0
  #latest = 0
  /** Of what came before the present member took it over: tokens, how many of them that read, and milliseconds. */
  #before: { tokens: number; read: number; ms: number } | undefined
  #lines = new EventLines()

  constructor(call: 'chat' | 'completion', request: EngineFields) {
    this.#call = call
    this.#request = request
  }

  /** All its text. */
  get text(): string {
    this.#readBytes()
    return this.#thinking + this.#content
  }

  /** Keeps what is passed on to the client. @param begun whether the answer has begun, beyond its prompt being read */
  keep(piece: readonly Delta[] | Buffer, begun = true): void {
    this.#latest = performance.now()
    if (begun) this.#began ||= this.#latest
    if (!Buffer.isBuffer(piece)) {
      for (const delta of piece as readonly Delta[]) this.#note(delta)
      return
    }
    this.#unread.push(piece)
    this.#unreadBytes += piece.length
    if (this.#unreadBytes > MAX_UNREAD) this.#readBytes()
  }

  /**
   * How it ends where it was cut behind its last token: why it ended was said, or it has as many tokens as it may have.
   * Undefined where more of it is to come.
   * @param tokens how many `text` has, where a member has counted them
   */
  ending(tokens: number): Ending | undefined {
    this.#readBytes()
    const completionTokens = Math.max(this.#pieces, tokens)
    const isEnd = this.#isFinished || completionTokens >= (limitOf(this.#request) ?? Number.POSITIVE_INFINITY)
    return isEnd && hasOneChoice(this.#call, this.#request) ? { completionTokens, prompt: this.#prompt } : undefined
  }

  /** What is still to be said of its end, as deltas. */
  lastDeltas(usage: TokenUsage): Delta[] {
    if (this.#isCounted) return []
    const timing = { prompt: 0, generation: this.#latest - this.#began }
    return [{ ...(!this.#isFinished && { finish: 'length' }), usage, timing }]
  }

  /** What is still to be said of its end, as events. @param usage undefined where the prompt was not counted */
  lastEvents(usage: TokenUsage | undefined): Buffer {
    const isText = this.#call === 'completion'
    const counts = usage && !this.#isCounted ? { usage: hostedUsage(usage) } : {}
    const choice = { index: 0, finish_reason: 'length', ...(isText ? { text: '', logprobs: null } : { delta: {} }) }
    const wanted = this.#request.stream_options as { include_usage?: boolean } | undefined
    const events: EngineFields[] = []
    if (!this.#isFinished) events.push({ ...this.#names, choices: [choice], ...(isText && counts) })
    if (!isText && 'usage' in counts && wanted?.include_usage) events.push({ ...this.#names, choices: [], ...counts })
    return Buffer.from([...events.map(event => JSON.stringify(event)), '[DONE]'].map(frame).join(''))
  }

  /**
   * How another member goes on with it; undefined where none can safely: within a call of a tool, in the middle of what a
   * grammar or a schema describes, or with several choices.
   * @param tokens those of `text`; fewer than its limit, or it has an `ending`
   */
  continuation(tokens: readonly number[]): Continuation | undefined {
    this.#readBytes()
    if (this.#isFixed || !canBeContinued(this.#call, this.#request)) return undefined
    // Some pieces hold several tokens; some texts would be read as fewer tokens than they were written with.
    const sofar = Math.max(this.#pieces, tokens.length)
    const request: EngineFields = { ...this.#request }
    const limit = limitOf(request)
    if (limit !== undefined) {
      for (const name of TOKEN_LIMITS) delete request[name]
      request.max_tokens = limit - sofar
    }
    this.#before = { tokens: sofar, read: tokens.length, ms: this.#latest - this.#began }
    this.#lines = new EventLines()
    if (this.#call === 'completion') {
      const { prompt } = request
      const more = Array.isArray(prompt) ? [...prompt, ...tokens] : `${prompt}${this.#content}`
      return { request: { ...request, prompt: more }, ending: '' }
    }
    const messages = [...(request.messages as EngineFields[])]
    const begun = messages.at(-1)?.role === 'assistant' ? messages.pop() : undefined
    const content = `${begun?.content ?? ''}${this.#content}`
    const thinking = `${begun?.reasoning_content ?? ''}${this.#thinking}`
    messages.push({ ...begun, role: 'assistant', content, ...(thinking && { reasoning_content: thinking }) })
    return {
      request: { ...request, messages, continue_final_message: true, add_generation_prompt: false },
      ending: content || thinking
    }
  }

  /** What the present member adds, as the client gets it; empty where that is nothing new. */
  join<Piece extends readonly Delta[] | Buffer>(piece: Piece): Piece {
    if (!this.#before) return piece
    if (!Buffer.isBuffer(piece)) {
      const deltas = (piece as readonly Delta[]).filter(({ reading }) => !reading)
      return deltas.map(delta => this.#joinedDelta(delta)) as readonly Delta[] as Piece
    }
    let text = ''
    for (const payload of this.#lines.push(piece)) {
      const event = payload === '[DONE]' ? undefined : (JSON.parse(payload) as StreamEvent)
      if (!event) text += frame(payload)
      else if (!isOpening(event)) text += frame(JSON.stringify(this.#joinedEvent(event)))
    }
    return Buffer.from(text) as Buffer as Piece
  }

  /** Counts of the whole answer, for those of what the present member did. */
  joinedUsage(usage: TokenUsage): TokenUsage {
    if (!this.#before) return usage
    const { tokens, read } = this.#before
    const promptTokens = this.#prompt?.promptTokens ?? Math.max(0, usage.promptTokens - read)
    return {
      promptTokens,
      cachedTokens: this.#prompt?.cachedTokens ?? Math.min(usage.cachedTokens, promptTokens),
      completionTokens: tokens + usage.completionTokens
    }
  }

  #joinedDelta({ usage, timing, extra, ...delta }: Delta): Delta {
    const timings = extra?.timings as Timings | undefined
    return {
      ...delta,
      ...(usage && { usage: this.joinedUsage(usage) }),
      ...(timing && { timing: { ...timing, generation: timing.generation + this.#before!.ms } }),
      ...(extra && { extra: { ...extra, ...(timings && { timings: this.#joinedTimings(timings) }) } })
    }
  }

  #joinedEvent(event: StreamEvent): StreamEvent {
    const { usage, timings } = event
    return {
      ...event,
      ...this.#names,
      ...(usage && { usage: hostedUsage(this.joinedUsage(usageOf(usage))) }),
      ...(timings && { timings: this.#joinedTimings(timings) })
    }
  }

  /** llama-server's own account: generation counts from the beginning of the answer. */
  #joinedTimings(timings: Timings): Timings {
    const { tokens, ms } = this.#before!
    const predicted_n = (timings.predicted_n ?? 0) + tokens
    const predicted_ms = (timings.predicted_ms ?? 0) + ms
    return {
      ...timings,
      predicted_n,
      predicted_ms,
      predicted_per_token_ms: predicted_ms / Math.max(1, predicted_n),
      predicted_per_second: (1000 * predicted_n) / Math.max(1, predicted_ms)
    }
  }

  #readBytes(): void {
    if (this.#unread.length === 0) return
    const text = Buffer.concat(this.#unread)
    this.#unread = []
    this.#unreadBytes = 0
    for (const payload of new EventLines().push(text)) {
      if (payload === '[DONE]') continue
      const event = JSON.parse(payload) as StreamEvent
      const { id, created, model, object, system_fingerprint, usage } = event
      this.#names ??= { id, created, model, object, ...(system_fingerprint !== undefined && { system_fingerprint }) }
      this.#note({ ...deltaOf(event), ...(usage && { usage: usageOf(usage) }) })
    }
  }

  #note({ choice, content, thinking, toolCalls, finish, reading, usage }: Delta): void {
    if (choice || toolCalls || finish) this.#isFixed = true
    if (finish) this.#isFinished = true
    if (this.#isFinished && usage) this.#isCounted = true
    if (content || thinking) this.#pieces++
    if (reading) this.#prompt ??= { promptTokens: reading.total, cachedTokens: reading.cached }
    else if (usage && !this.#before) this.#prompt ??= usage
    if (this.#isFixed) return
    this.#content += content ?? ''
    this.#thinking += thinking ?? ''
    if (this.#content.length + this.#thinking.length <= MAX_KEPT) return
    this.#isFixed = true
    this.#content = ''
    this.#thinking = ''
  }
}

const frame = (payload: string) => `data: ${payload}\n\n`

/** An event that says only who speaks, or how much of the prompt is read. */
function isOpening({ choices, prompt_progress, usage, timings }: StreamEvent): boolean {
  if (prompt_progress) return true
  const choice = choices?.[0]
  const { content, reasoning_content, tool_calls } = choice?.delta ?? {}
  const says = content || reasoning_content || tool_calls || choice?.text || choice?.finish_reason
  return !says && Boolean(choice) && !usage && !timings
}

/** Whether a piece of a stream says something, rather than who speaks or how much of the prompt is read. */
export function saysSomething(piece: readonly Delta[] | Buffer): boolean {
  if (Buffer.isBuffer(piece)) {
    return new EventLines().push(piece).some(payload => payload === '[DONE]' || !isOpening(JSON.parse(payload)))
  }
  return piece.some(
    ({ content, thinking, toolCalls, finish, logprobs }) => content || thinking || toolCalls || finish || logprobs
  )
}

/** The most tokens that a request wants. */
function limitOf(request: EngineFields): number | undefined {
  const name = TOKEN_LIMITS.find(name => typeof request[name] === 'number' && request[name] >= 0)
  return name === undefined ? undefined : (request[name] as number)
}

function hasOneChoice(call: 'chat' | 'completion', { n, prompt }: EngineFields): boolean {
  if (typeof n === 'number' && n > 1) return false
  return call === 'chat' || typeof prompt === 'string' || (Array.isArray(prompt) && typeof prompt[0] === 'number')
}

function canBeContinued(call: 'chat' | 'completion', request: EngineFields): boolean {
  const { tools, tool_choice, messages } = request
  const { response_format, grammar, json_schema, suffix, line, echo, continue_final_message } = request
  if (!hasOneChoice(call, request)) return false
  const format = (response_format as EngineFields | null | undefined)?.type
  if ((format !== undefined && format !== 'text') || grammar || json_schema) return false
  if (call === 'completion') return suffix === undefined && line === undefined
  const hasTools = Array.isArray(tools) && tools.length > 0
  if (hasTools && tool_choice !== undefined && tool_choice !== 'auto' && tool_choice !== 'none') return false
  const last = (messages as EngineFields[]).at(-1)
  if (last?.role !== 'assistant') return true
  // Without this the engine repeats what is there already.
  return continue_final_message === true && !echo && typeof (last.content ?? '') === 'string'
}

const usageOf = ({ prompt_tokens, completion_tokens, prompt_tokens_details }: HostedUsage): TokenUsage => ({
  promptTokens: prompt_tokens,
  cachedTokens: prompt_tokens_details?.cached_tokens ?? 0,
  completionTokens: completion_tokens
})

const hostedUsage = ({ promptTokens, cachedTokens, completionTokens }: TokenUsage): HostedUsage & EngineFields => ({
  completion_tokens: completionTokens,
  prompt_tokens: promptTokens,
  total_tokens: promptTokens + completionTokens,
  prompt_tokens_details: { cached_tokens: cachedTokens }
})
