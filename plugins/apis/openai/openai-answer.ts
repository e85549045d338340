import type { Static } from 'typebox'
import { addCallPiece } from '../../../core/answers/call-arguments.ts'
import { hostedCalls } from '../../../core/answers/hosted-calls.ts'
import type { Delta, TokenProbability, ToolCallPiece } from '../../../core/contracts/engines.ts'
import { TokenTally } from '../../../core/http/request-record.ts'
import { merged } from '../../../core/system/collections.ts'
import { FreeformInput, freeformInput } from './freeform-tools.ts'
import type { ChatChunk, Completion, Usage } from './schemas.ts'

type ChatPiece = Static<typeof ChatChunk>
type TextPiece = Static<typeof Completion>
type Chunk = ChatPiece | TextPiece
type ChatChoice = ChatPiece['choices'][number]
type TextChoice = TextPiece['choices'][number]

export interface AnswerHead {
  operation: 'chat' | 'completion'
  id: string
  model: string
  choices: number
  bestOf?: number
  /** Number of alternatives listed for each token. Undefined if no log probabilities are requested. */
  logprobs?: number
  usage: boolean
  /** Whether the request uses the old functions instead of tools. The answer then does the same. */
  legacyFunctions?: boolean
  /** The names of freeform tools by the names of their functions. */
  freeform?: ReadonlyMap<string, string>
  /** Whether the client wants to know what happens to tools that corral runs. */
  hosted?: boolean
  echo?: readonly string[]
  /** Whether the answer must be empty. Engines generate one token even if none was requested. */
  nothing?: boolean
}

interface FunctionPiece {
  index: number
  id?: string
  type?: 'function'
  function: { name?: string; arguments: string }
}
type CallPiece =
  | FunctionPiece
  | { index: number; id?: string; type?: 'custom'; custom: { name?: string; input: string } }

const ROLE = { role: 'assistant', content: null } as const

/** Writes an engine's answer in the OpenAI chat format, as chunks or as a whole. */
export class OpenAiAnswer {
  readonly #head: AnswerHead
  readonly #created = Math.floor(Date.now() / 1000)
  readonly #tokens = new TokenTally()
  /** Whether the engine counts tokens. */
  #counts = false
  /** By choice: the characters so far (undefined before the first chunk), and the whole answer. */
  readonly #lengths: (number | undefined)[] = []
  readonly #wholes: Delta[] = []
  /** The inputs of freeform tools that are being streamed, by choice and call. */
  readonly #inputs = new Map<string, { choice: number; index: number; reader: FreeformInput }>()
  #extra: Record<string, unknown> = {}
  /** Calls of tools that corral runs, of a whole answer. */
  readonly #hosted: object[] = []
  /** Whether the client has the chunk with the role of the first choice. */
  #begun = false

  /** @param earlier writer of the same stream, which may have sent chunks without content */
  constructor(head: AnswerHead, earlier?: OpenAiAnswer) {
    this.#head = head
    this.#tokens.choicesPerPrompt = head.choices
    if (earlier) this.#begun = earlier.#begun
  }

  /** Whether the role of the first choice must still be sent. From now on it counts as sent. */
  begins(): boolean {
    const begins = !this.#begun
    this.#begun = true
    return begins
  }

  beat(): Chunk {
    const common = { index: 0, finish_reason: null }
    if (this.#head.operation === 'completion') return this.#chunk([{ ...common, text: '', logprobs: null }])
    return this.#chunk([{ ...common, delta: this.begins() ? ROLE : {} }])
  }

  chunks(deltas: readonly Delta[]): Chunk[] {
    const chunks: Chunk[] = []
    for (const delta of deltas) {
      if (!this.#note(delta)) continue
      const { choice = 0 } = delta
      if (this.#head.operation === 'completion') chunks.push(this.#chunk([this.#textChoice(choice, delta)]))
      else {
        if (this.#lengths[choice] === undefined) {
          this.#lengths[choice] = 0
          const delta = ROLE
          if (choice > 0 || this.begins()) chunks.push(this.#chunk([{ index: choice, finish_reason: null, delta }]))
        }
        chunks.push(this.#chunk([this.#chatChoice(choice, delta, this.#streamedCalls(delta))]))
        if (delta.hosted && this.#head.hosted) Object.assign(chunks.at(-1)!, { mcp: hostedCalls(delta.hosted) })
      }
      if (delta.finish && !this.#head.usage) Object.assign(chunks.at(-1)!, this.#extra)
    }
    return chunks
  }

  lastChunk(): Chunk | undefined {
    const usage = this.#head.usage ? this.#total() : undefined
    return usage && { ...this.#chunk([]), ...this.#extra, usage }
  }

  add(deltas: readonly Delta[]): void {
    for (const delta of deltas) {
      if (!this.#note(delta)) continue
      const { choice = 0 } = delta
      this.#wholes[choice] ??= {}
      if (delta.hosted && this.#head.hosted) this.#hosted.push(...hostedCalls(delta.hosted))
      append(this.#wholes[choice], delta)
    }
  }

  whole(): Record<string, unknown> {
    const { operation, bestOf, choices } = this.#head
    const usage = this.#total()
    const made = this.#wholes.map((delta, index) =>
      operation === 'completion' ? this.#textChoice(index, delta) : this.#messageChoice(index, delta)
    )
    const kept =
      bestOf === undefined
        ? made
        : bestChoices(this.#wholes.map(meanLogprob), choices, bestOf).map((at, index) => ({ ...made[at], index }))
    const chunk = this.#chunk([])
    return merged(chunk, {
      object: chunk.object.replace('.chunk', ''),
      choices: kept,
      ...(this.#hosted.length > 0 && { mcp: this.#hosted }),
      ...this.#extra,
      ...(usage && { usage })
    })
  }

  /** Stores the counts and the engine's own fields. @returns whether the delta contains anything else */
  #note({ choice = 0, usage, extra, content, thinking, toolCalls, logprobs, finish, hosted }: Delta): boolean {
    if (usage) {
      this.#counts = true
      this.#tokens.usage(usage, choice)
    }
    if (extra) this.#extra = extra
    return Boolean(content || thinking || toolCalls || logprobs || finish || (hosted && this.#head.hosted))
  }

  #chunk(choices: (ChatChoice | TextChoice)[]): Chunk {
    const { operation, id, model } = this.#head
    const object = operation === 'chat' ? 'chat.completion.chunk' : 'text_completion'
    return { id, object, created: this.#created, model, choices } as Chunk
  }

  #total(): Usage | undefined {
    if (!this.#counts) return undefined
    const { prompt, cached, completion } = this.#tokens
    const completionTokens = this.#head.nothing ? 0 : completion
    return {
      prompt_tokens: prompt,
      completion_tokens: completionTokens,
      total_tokens: prompt + completionTokens,
      prompt_tokens_details: { cached_tokens: cached }
    }
  }

  /** Returns the pieces of calls in a stream. The input of a freeform tool is decoded as its JSON text arrives. */
  #streamedCalls({ choice = 0, toolCalls, finish }: Delta): CallPiece[] | undefined {
    const { freeform } = this.#head
    if (!freeform) return toolCalls?.map(callPiece)
    const pieces = (toolCalls ?? []).flatMap((piece): CallPiece[] => {
      const key = `${choice}:${piece.index}`
      const name = freeform.get(piece.name ?? '')
      if (name !== undefined) this.#inputs.set(key, { choice, index: piece.index, reader: new FreeformInput() })
      const open = this.#inputs.get(key)
      if (!open) return [callPiece(piece)]
      const input = open.reader.add(piece.arguments)
      const { index, id } = piece
      if (name !== undefined) return [{ index, ...(id && { id }), type: 'custom', custom: { name, input } }]
      return input === '' ? [] : [{ index, custom: { input } }]
    })
    if (finish) {
      for (const [key, open] of this.#inputs) {
        if (open.choice !== choice) continue
        this.#inputs.delete(key)
        const input = open.reader.end()
        if (input !== '') pieces.push({ index: open.index, custom: { input } })
      }
    }
    return pieces.length > 0 ? pieces : undefined
  }

  #chatChoice(
    index: number,
    { content, thinking, toolCalls, logprobs, finish }: Delta,
    calls: CallPiece[] | undefined
  ): ChatChoice {
    const { logprobs: top, legacyFunctions } = this.#head
    const tokens = top === undefined ? [] : chatLogprobs(logprobs ?? [], top)
    const firstCall = toolCalls?.find(piece => piece.index === 0)
    return {
      index,
      finish_reason: (legacyFunctions && finish === 'tool_calls' ? 'function_call' : finish) ?? null,
      delta: {
        ...(content && { content }),
        ...(thinking && { reasoning_content: thinking }),
        ...(!legacyFunctions && calls && { tool_calls: calls }),
        ...(legacyFunctions && firstCall && { function_call: callPiece(firstCall).function })
      },
      ...(tokens.length > 0 && { logprobs: { content: tokens, refusal: null } })
    }
  }

  #messageChoice(at: number, whole: Delta) {
    const { index, finish_reason, delta: said, logprobs = null } = this.#chatChoice(at, whole, undefined)
    const calls = this.#head.legacyFunctions ? undefined : whole.toolCalls?.map(piece => this.#wholeCall(piece))
    const content = calls || said.function_call ? null : ''
    const message = { role: 'assistant', content, refusal: null, ...said, ...(calls && { tool_calls: calls }) }
    return { index, finish_reason, logprobs, message }
  }

  #wholeCall(piece: ToolCallPiece) {
    const { index, ...call } = callPiece(piece)
    const name = this.#head.freeform?.get(piece.name ?? '')
    if (name === undefined) return call
    return { id: call.id, type: 'custom', custom: { name, input: freeformInput(piece.arguments) } }
  }

  #textChoice(index: number, { content = '', logprobs = [], finish }: Delta): TextChoice {
    const { logprobs: top, echo, nothing } = this.#head
    const before = this.#lengths[index]
    const prompt = before === undefined && echo ? echo[this.#tokens.promptOf(index)]! : ''
    const text = prompt + (nothing ? '' : content)
    const offset = (before ?? 0) + [...prompt].length
    this.#lengths[index] = (before ?? 0) + [...text].length
    const wanted = top !== undefined && !nothing && logprobs.length > 0
    return {
      index,
      text,
      finish_reason: finish === 'tool_calls' ? 'stop' : (finish ?? null),
      logprobs: wanted ? completionLogprobs(logprobs, top, offset) : null
    }
  }
}

function callPiece({ index, id, name, arguments: text }: ToolCallPiece): FunctionPiece {
  return { index, ...(id && { id, type: 'function' }), function: { ...(name && { name }), arguments: text } }
}

function append(whole: Delta, { content = '', thinking = '', toolCalls = [], logprobs = [], finish }: Delta): void {
  whole.content = (whole.content ?? '') + content
  whole.thinking = (whole.thinking ?? '') + thinking
  whole.logprobs = whole.logprobs ?? []
  whole.logprobs.push(...logprobs)
  if (finish) whole.finish = finish
  for (const piece of toolCalls) {
    whole.toolCalls ??= []
    addCallPiece(whole.toolCalls, piece)
  }
}

/** Chooses the choices of each prompt whose tokens are the most likely on average, as OpenAI does. */
export function bestChoices(means: readonly number[], made: number, kept: number): number[] {
  const chosen: number[] = []
  for (let first = 0; first < means.length; first += made) {
    const group = Array.from({ length: made }, (_, place) => first + place)
    chosen.push(...group.sort((a, b) => means[b]! - means[a]!).slice(0, kept))
  }
  return chosen
}

function meanLogprob({ logprobs = [] }: Delta): number {
  const tokens = logprobs.filter(hasBytes)
  return tokens.reduce((sum, { logprob }) => sum + logprob, 0) / Math.max(1, tokens.length)
}

/** End-of-text tokens have no text. The same is true of tokens that the engine holds back until the next one. */
const hasBytes = ({ bytes }: TokenProbability) => bytes.length > 0

export function logprobFields(top: number): Record<string, unknown> {
  return { logprobs: true, top_logprobs: top }
}

export function chatLogprobs(tokens: readonly TokenProbability[], top: number): TokenProbability[] {
  return tokens.filter(hasBytes).map(({ token, bytes, logprob, top_logprobs }) => ({
    token,
    bytes,
    logprob,
    top_logprobs: top_logprobs.slice(0, top).map(({ token, bytes, logprob }) => ({ token, bytes, logprob }))
  }))
}

/** Formats tokens for the older completions API. @param offset number of characters before the first token */
export function completionLogprobs(tokens: readonly TokenProbability[], top: number, offset: number) {
  const shown = chatLogprobs(tokens, top)
  let at = offset
  return {
    tokens: shown.map(({ token }) => token),
    token_logprobs: shown.map(({ logprob }) => logprob),
    top_logprobs: top === 0 ? null : shown.map(({ top_logprobs }) => byToken(top_logprobs)),
    text_offset: shown.map(({ token }) => {
      const start = at
      at += [...token].length
      return start
    })
  }
}

function byToken(likeliest: TokenProbability['top_logprobs']): Record<string, number> {
  const found = new Map<string, number>()
  // Several partial characters may look the same. The most tokenFields one comes first and is kept.
  for (const { token, logprob } of likeliest) if (!found.has(token)) found.set(token, logprob)
  return Object.fromEntries(found)
}
