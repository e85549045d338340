import type { Delta, TokenProbability, TokenUsage, ToolCallPiece } from '../../core/contracts/engines.ts'

/** A piece of an answer, of chat completions or of completions. */
export interface Chunk {
  object: string
  choices: ChunkChoice[]
  usage?: Usage
  [other: string]: unknown
}

interface ChunkChoice {
  index: number
  finish_reason: string | null
  logprobs?: unknown
  /** Of completions. */
  text?: string
  /** Of chat completions. */
  delta?: {
    role?: 'assistant'
    content?: string | null
    reasoning_content?: string
    tool_calls?: CallPiece[]
    function_call?: { name?: string; arguments?: string }
  }
}

interface CallPiece {
  index: number
  id?: string
  type?: string
  function: { name?: string; arguments: string }
}

interface Usage {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details: { cached_tokens: number }
}

/** What stays the same of an answer, and how it is written. */
export interface ChunkHead {
  object: 'chat.completion.chunk' | 'text_completion'
  id: string
  /** The model's name as it was requested. */
  model: string
  /** Choices of each prompt. */
  choices: number
  /** How many of the likeliest tokens are given at each place; undefined where none were requested. */
  logprobs?: number
  /** Whether the counts are given at the end. */
  usage: boolean
  legacyFunctions?: boolean
  /** Texts of the prompts, where answers begin with them. */
  echo?: readonly string[]
  /** The answer has no text: engines make one token where none was requested. */
  nothing?: boolean
}

/** Writes the deltas of one answer as chunks of hosted chat. */
export class ChunkWriter {
  readonly #head: ChunkHead
  readonly #created = Math.floor(Date.now() / 1000)
  /** By choice: its latest counts, and characters of its text so far; undefined until its first chunk. */
  readonly #usage: (TokenUsage | undefined)[] = []
  readonly #lengths: (number | undefined)[] = []
  #extra: Record<string, unknown> = {}

  constructor(head: ChunkHead) {
    this.#head = head
  }

  add(deltas: readonly Delta[]): Chunk[] {
    const chunks: Chunk[] = []
    for (const delta of deltas) {
      const { choice = 0, usage, finish, extra } = delta
      if (usage) this.#usage[choice] = usage
      if (extra) this.#extra = extra
      const { content, thinking, toolCalls, logprobs } = delta
      if (!content && !thinking && !toolCalls && !logprobs && !finish) continue
      if (this.#head.object === 'text_completion') chunks.push(this.#chunk([this.#textChoice(choice, delta)]))
      else {
        if (this.#lengths[choice] === undefined) {
          this.#lengths[choice] = 0
          chunks.push(
            this.#chunk([{ index: choice, finish_reason: null, delta: { role: 'assistant', content: null } }])
          )
        }
        chunks.push(this.#chunk([this.#chatChoice(choice, delta)]))
      }
      if (finish && !this.#head.usage) Object.assign(chunks.at(-1)!, this.#extra)
    }
    return chunks
  }

  /** The last chunk, with the counts, where it is wanted. */
  end(): Chunk | undefined {
    if (!this.#head.usage || this.#usage.length === 0) return undefined
    return { ...this.#chunk([]), ...this.#extra, usage: this.#total() }
  }

  #chunk(choices: ChunkChoice[]): Chunk {
    const { object, id, model } = this.#head
    return { id, object, created: this.#created, model, choices }
  }

  /** The counts of all choices: each prompt is counted once, and the tokens of all answers. */
  #total(): Usage {
    const prompts = new Map<number, { tokens: number; cached: number }>()
    let completion = 0
    for (const [choice, usage] of this.#usage.entries()) {
      if (!usage) continue
      const prompt = this.#promptOf(choice)
      // What the first of several choices had to read, the others find in the cache.
      const cached = Math.min(prompts.get(prompt)?.cached ?? usage.cachedTokens, usage.cachedTokens)
      prompts.set(prompt, { tokens: usage.promptTokens, cached })
      completion += usage.completionTokens
    }
    const sum = (counts: number[]) => counts.reduce((total, count) => total + count, 0)
    const tokens = sum([...prompts.values()].map(prompt => prompt.tokens))
    const completionTokens = this.#head.nothing ? 0 : completion
    return {
      prompt_tokens: tokens,
      completion_tokens: completionTokens,
      total_tokens: tokens + completionTokens,
      prompt_tokens_details: { cached_tokens: sum([...prompts.values()].map(({ cached }) => cached)) }
    }
  }

  #promptOf(choice: number): number {
    return Math.floor(choice / this.#head.choices)
  }

  #chatChoice(index: number, { content, thinking, toolCalls, logprobs, finish }: Delta): ChunkChoice {
    const { logprobs: top, legacyFunctions } = this.#head
    const tokens = top === undefined ? [] : chatLogprobs(logprobs ?? [], top)
    const firstCall = toolCalls?.find(piece => piece.index === 0)
    return {
      index,
      finish_reason: (legacyFunctions && finish === 'tool_calls' ? 'function_call' : finish) ?? null,
      delta: {
        ...(content && { content }),
        ...(thinking && { reasoning_content: thinking }),
        ...(!legacyFunctions && toolCalls && { tool_calls: toolCalls.map(callPiece) }),
        ...(legacyFunctions && firstCall && { function_call: callPiece(firstCall).function })
      },
      ...(tokens.length > 0 && { logprobs: { content: tokens, refusal: null } })
    }
  }

  #textChoice(index: number, { content = '', logprobs = [], finish }: Delta): ChunkChoice {
    const { logprobs: top, echo, nothing } = this.#head
    const before = this.#lengths[index]
    const prompt = before === undefined && echo ? echo[this.#promptOf(index)]! : ''
    const text = prompt + (nothing ? '' : content)
    const offset = (before ?? 0) + [...prompt].length
    this.#lengths[index] = (before ?? 0) + [...text].length
    const wanted = top !== undefined && !nothing && logprobs.length > 0
    return {
      index,
      text,
      finish_reason: finish === 'tool_calls' ? 'stop' : (finish ?? null),
      logprobs: wanted ? olderLogprobs(logprobs, top, offset) : null
    }
  }
}

function callPiece({ index, id, name, arguments: text }: ToolCallPiece): CallPiece {
  return { index, ...(id && { id, type: 'function' }), function: { ...(name && { name }), arguments: text } }
}

interface Message {
  role: 'assistant'
  content: string | null
  refusal: null
  reasoning_content?: string
  tool_calls?: { id?: string; type: string; function: { name: string; arguments: string } }[]
  function_call?: { name: string; arguments: string }
}

export interface Choice {
  index: number
  finish_reason: string | null
  text?: string
  message?: Message
  /** Of chat completions, or of completions. */
  logprobs: { content: TokenProbability[]; refusal: null } | OlderLogprobs | null
}

/** Puts the chunks of an answer together to a whole one. */
export class WholeAnswer {
  /** What belongs to the answer as a whole: id, usage, timings and so on. */
  #fields: Record<string, unknown> = {}
  readonly #choices: Choice[] = []

  add(chunk: Chunk): void {
    const { choices, object, ...fields } = chunk
    // Of what comes with each choice, such as timings, the first counts.
    this.#fields = { ...fields, ...this.#fields, object: object.replace('.chunk', '') }
    for (const piece of choices) this.#addTo(this.#choice(piece), piece)
  }

  /** The choices in their order. */
  choices(): Choice[] {
    return this.#choices.filter(choice => choice !== undefined)
  }

  /** The answer with these of its choices. */
  body(choices: readonly Choice[] = this.choices()): Record<string, unknown> {
    for (const { message } of choices) {
      if (message && message.content === '' && (message.tool_calls || message.function_call)) message.content = null
    }
    return { choices, ...this.#fields }
  }

  #choice({ index, delta }: ChunkChoice): Choice {
    this.#choices[index] ??= {
      index,
      finish_reason: null,
      ...(delta ? { message: { role: 'assistant', content: '', refusal: null } } : { text: '' }),
      logprobs: null
    }
    return this.#choices[index]
  }

  #addTo(choice: Choice, { delta, text, logprobs, finish_reason }: ChunkChoice): void {
    choice.finish_reason = finish_reason ?? choice.finish_reason
    if (logprobs) choice.logprobs = joinedLogprobs(choice.logprobs, logprobs as NonNullable<Choice['logprobs']>)
    if (choice.text !== undefined) choice.text += text ?? ''
    const { message } = choice
    if (!message || !delta) return
    message.content += delta.content ?? ''
    if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? '') + delta.reasoning_content
    for (const piece of delta.tool_calls ?? []) {
      message.tool_calls ??= []
      message.tool_calls[piece.index] ??= { type: 'function', function: { name: '', arguments: '' } }
      const call = message.tool_calls[piece.index]!
      if (piece.id) call.id = piece.id
      addCall(call.function, piece.function)
    }
    if (delta.function_call) {
      message.function_call ??= { name: '', arguments: '' }
      addCall(message.function_call, delta.function_call)
    }
  }
}

function addCall(call: { name: string; arguments: string }, piece: { name?: string; arguments?: string }): void {
  call.name += piece.name ?? ''
  call.arguments += piece.arguments ?? ''
}

/** Log probabilities of further tokens are appended. */
function joinedLogprobs(known: Choice['logprobs'], more: NonNullable<Choice['logprobs']>): Choice['logprobs'] {
  if (!known) return more
  const lists = known as unknown as Record<string, unknown[] | null>
  for (const [name, values] of Object.entries(more)) if (Array.isArray(values)) lists[name]?.push(...values)
  return known
}

/** The older form, of completions. */
interface OlderLogprobs {
  tokens: string[]
  token_logprobs: number[]
  top_logprobs: Record<string, number>[] | null
  /** Where each token begins in the text, in characters. */
  text_offset: number[]
}

/** Requests them of an engine. @param top how many of the likeliest are wanted */
export function askLogprobs(top: number): Record<string, unknown> {
  return { logprobs: true, top_logprobs: top }
}

/**
 * Tokens with as many of the likeliest as were asked for. One without text is left out: the end of the text, and what
 * an engine holds back, which comes with the token after it.
 */
export function chatLogprobs(tokens: readonly TokenProbability[], top: number): TokenProbability[] {
  return tokens
    .filter(({ bytes }) => bytes.length > 0)
    .map(({ token, bytes, logprob, top_logprobs }) => ({
      token,
      bytes,
      logprob,
      top_logprobs: top_logprobs.slice(0, top).map(({ token, bytes, logprob }) => ({ token, bytes, logprob }))
    }))
}

/**
 * The same in the form of completions.
 * @param offset characters of the text before the first of these tokens
 */
export function olderLogprobs(tokens: readonly TokenProbability[], top: number, offset: number): OlderLogprobs {
  const told = chatLogprobs(tokens, top)
  let at = offset
  return {
    tokens: told.map(({ token }) => token),
    token_logprobs: told.map(({ logprob }) => logprob),
    top_logprobs: top === 0 ? null : told.map(({ top_logprobs }) => byToken(top_logprobs)),
    text_offset: told.map(({ token }) => {
      const start = at
      at += [...token].length
      return start
    })
  }
}

function byToken(likeliest: TokenProbability['top_logprobs']): Record<string, number> {
  const found = new Map<string, number>()
  // Tokens that are parts of characters may look alike; the likeliest comes first.
  for (const { token, logprob } of likeliest) if (!found.has(token)) found.set(token, logprob)
  return Object.fromEntries(found)
}
