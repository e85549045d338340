import { type OpenAiEvent, SseParser } from '../../../../core/answers/openai-events.ts'
import type { Delta, EngineFields, TokenUsage } from '../../../../core/contracts/engines.ts'

/*
 * An answer that another node can continue. For the next node, the text so far becomes the beginning of the assistant's
 * message (or the end of the prompt). Its output is then appended.
 */

/** Maximum characters stored of an answer. A longer one cannot be continued elsewhere. */
const MAX_STORED_CHARACTERS = 2 ** 20
/** Names of the token limit. If a request has several, the first applies. */
const TOKEN_LIMITS = ['max_tokens', 'n_predict', 'max_completion_tokens', 'max_output_tokens']

type Timings = Record<string, number>

interface Continuation {
  request: EngineFields
  /** The end that its rendered prompt must have. A template that omits it would generate the text again. */
  ending: string
}

/** The end of an answer whose tokens have all arrived. */
export interface Ending {
  completionTokens: number
  /** Undefined if no node has counted the prompt. */
  prompt: Pick<TokenUsage, 'promptTokens' | 'cachedTokens'> | undefined
}

export class ContinuedAnswer {
  readonly #call: 'chat' | 'completion'
  readonly #request: EngineFields
  #content = ''
  #thinking = ''
  /** Pieces with text. Nearly all of them are one token each. */
  #pieces = 0
  /** Whether it contains something that no other node can continue. */
  #isFixed = false
  /** The finish reason has come, and the token counts too. */
  #isFinished = false
  #isCounted = false
  /** Prompt tokens, if the first node has counted them. */
  #prompt: Pick<TokenUsage, 'promptTokens' | 'cachedTokens'> | undefined
  #began = 0
  #latest = 0
  /** Totals before the current node took over: tokens, prompt tokens read again for them, and milliseconds. */
  #before: { tokens: number; read: number; ms: number } | undefined

  constructor(call: 'chat' | 'completion', request: EngineFields) {
    this.#call = call
    this.#request = request
  }

  get text(): string {
    return this.#thinking + this.#content
  }

  /** Stores a piece that the client gets. @param begun whether the answer has begun, after prompt processing */
  keep(piece: readonly Delta[], begun = true): void {
    this.#latest = performance.now()
    if (begun) this.#began ||= this.#latest
    for (const delta of piece) this.#note(delta)
  }

  /**
   * Returns the end of an answer that was cut off after its last token: the finish reason has come, or the token limit
   * is reached. Undefined if more is to come.
   * @param tokens number of tokens in `text`, if a node has counted them
   */
  ending(tokens: number): Ending | undefined {
    const completionTokens = Math.max(this.#pieces, tokens)
    const isEnd = this.#isFinished || completionTokens >= (getTokenLimit(this.#request) ?? Number.POSITIVE_INFINITY)
    return isEnd && hasOneChoice(this.#call, this.#request) ? { completionTokens, prompt: this.#prompt } : undefined
  }

  lastDeltas(usage: TokenUsage): Delta[] {
    if (this.#isCounted) return []
    const timing = { prompt: 0, generation: this.#latest - this.#began }
    return [{ ...(!this.#isFinished && { finish: 'length' }), usage, timing }]
  }

  /**
   * Returns the request that continues the answer at another node. Undefined if that is not safe: within a tool call,
   * in the middle of output that a grammar or schema constrains, or with several choices.
   * @param tokens the tokens of `text`, fewer than its limit
   */
  continuation(tokens: readonly number[]): Continuation | undefined {
    if (this.#isFixed || !canBeContinued(this.#call, this.#request)) return undefined
    // Some pieces contain several tokens, and some texts have fewer tokens than were generated.
    const sofar = Math.max(this.#pieces, tokens.length)
    const request: EngineFields = { ...this.#request }
    const limit = getTokenLimit(request)
    if (limit !== undefined) {
      for (const name of TOKEN_LIMITS) delete request[name]
      request.max_tokens = limit - sofar
    }
    this.#before = { tokens: sofar, read: tokens.length, ms: this.#latest - this.#began }
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

  /** Rewrites a piece of the current node for the client. It is empty if it contains nothing new. */
  join(piece: readonly Delta[]): readonly Delta[] {
    if (!this.#before) return piece
    return piece.filter(({ reading }) => !reading).map(delta => this.#joinedDelta(delta))
  }

  #joinedUsage(usage: TokenUsage): TokenUsage {
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
      ...(usage && { usage: this.#joinedUsage(usage) }),
      ...(timing && { timing: { ...timing, generation: timing.generation + this.#before!.ms } }),
      ...(extra && { extra: { ...extra, ...(timings && { timings: this.#joinedTimings(timings) }) } })
    }
  }

  /** llama-server's timings, counted from the beginning of the answer. */
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
    if (this.#content.length + this.#thinking.length <= MAX_STORED_CHARACTERS) return
    this.#isFixed = true
    this.#content = ''
    this.#thinking = ''
  }
}

/** Whether a piece of a stream has content, and not only the role or the progress of prompt processing. */
export function hasAnswerContent(piece: readonly Delta[] | Buffer): boolean {
  if (Buffer.isBuffer(piece)) {
    return new SseParser().push(piece).some(payload => payload === '[DONE]' || !isOpening(JSON.parse(payload)))
  }
  return piece.some(
    ({ content, thinking, toolCalls, finish, logprobs, bytes, json }) =>
      content || thinking || toolCalls || finish || logprobs || bytes || json
  )
}

type StreamEvent = OpenAiEvent & Partial<Record<'usage' | 'timings' | 'prompt_progress', unknown>>

/** An event with only the role or the progress of prompt processing. */
function isOpening({ choices, prompt_progress, usage, timings }: StreamEvent): boolean {
  if (prompt_progress) return true
  const choice = choices?.[0]
  const { content, reasoning_content, tool_calls } = choice?.delta ?? {}
  const says = content || reasoning_content || tool_calls || choice?.text || choice?.finish_reason
  return !says && Boolean(choice) && !usage && !timings
}

function getTokenLimit(request: EngineFields): number | undefined {
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
  // Without this the engine would repeat the existing text.
  return continue_final_message === true && !echo && typeof (last.content ?? '') === 'string'
}
