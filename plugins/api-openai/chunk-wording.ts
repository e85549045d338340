import { chatLogprobs, olderLogprobs, type TokenProbability } from './logprobs.ts'
import { type Usage, UsageSum } from './usage-sum.ts'

/** A piece of an answer, of chat completions or of completions. */
export interface Chunk {
  object: string
  choices: ChunkChoice[]
  usage?: Usage
  [other: string]: unknown
}

export interface ChunkChoice {
  index: number
  finish_reason: string | null
  logprobs?: unknown
  /** Of completions. */
  text?: string
  /** Of chat completions. */
  delta?: {
    content?: string | null
    reasoning_content?: string | null
    tool_calls?: ToolCallPiece[]
    function_call?: { name?: string; arguments?: string }
  }
}

interface ToolCallPiece {
  index?: number
  id?: string
  type?: string
  function?: { name?: string; arguments?: string }
}

/** What is worded anew in the engine's chunks. */
export interface Wording {
  id: string
  /** The model's name as it was asked for. */
  model: string
  /** Choices of each prompt. */
  choices: number
  /** How many of the likeliest tokens are told; undefined where none were asked for. */
  logprobs?: number
  /** Whether the counts are told at the end. */
  usage: boolean
  legacyFunctions?: boolean
  /** Texts of the prompts, where answers begin with them. */
  echo?: readonly string[]
  /** The answer has no text: llama-server makes one token where none was asked for. */
  nothing?: boolean
}

/** Words the chunks of one answer as hosted services do, where llama-server does so otherwise. */
export class ChunkWording {
  readonly #wording: Wording
  readonly #sum = new UsageSum()
  /** By choice: characters of its text so far. */
  readonly #lengths: number[] = []
  #last: Chunk | undefined

  constructor(wording: Wording) {
    this.#wording = wording
  }

  /** @returns undefined when nothing of the chunk is to be told */
  word(chunk: Chunk): Chunk | undefined {
    const { usage, ...rest } = chunk
    this.#last = rest
    if (usage) this.#sum.add(usage, this.#promptOf(chunk.choices[0]?.index ?? 0))
    if (usage && chunk.choices.length === 0) return undefined
    const { id, model } = this.#wording
    return { ...rest, id, model, choices: rest.choices.map(choice => this.#choice(choice)) }
  }

  /** The last chunk, with the counts, where it is wanted. */
  end(): Chunk | undefined {
    if (!this.#wording.usage || !this.#last || this.#sum.choices === 0) return undefined
    const { id, model } = this.#wording
    return { ...this.#last, id, model, choices: [], usage: this.#usage() }
  }

  #usage(): Usage {
    const total = this.#sum.total()
    return this.#wording.nothing ? { ...total, completion_tokens: 0, total_tokens: total.prompt_tokens } : total
  }

  #promptOf(choice: number): number {
    return Math.floor(choice / this.#wording.choices)
  }

  #choice(choice: ChunkChoice): ChunkChoice {
    return choice.delta ? this.#chatChoice(choice) : this.#textChoice(choice)
  }

  #chatChoice({ delta, logprobs, ...rest }: ChunkChoice): ChunkChoice {
    const { logprobs: top, legacyFunctions } = this.#wording
    const tokens = top === undefined ? [] : chatLogprobs(tokensOf(logprobs), top)
    return {
      ...rest,
      ...(legacyFunctions ? olderCalls(rest.finish_reason, delta!) : { delta }),
      ...(tokens.length > 0 && { logprobs: { content: tokens, refusal: null } })
    }
  }

  #textChoice({ text: given = '', logprobs, ...rest }: ChunkChoice): ChunkChoice {
    const { logprobs: top, echo, nothing } = this.#wording
    const before = this.#lengths[rest.index]
    const prompt = before === undefined && echo ? echo[this.#promptOf(rest.index)]! : ''
    const text = prompt + (nothing ? '' : given)
    const offset = (before ?? 0) + [...prompt].length
    this.#lengths[rest.index] = (before ?? 0) + [...text].length
    const tokens = tokensOf(logprobs)
    const told = top !== undefined && !nothing && tokens.length > 0
    return { ...rest, text, logprobs: told ? olderLogprobs(tokens, top, offset) : null }
  }
}

function tokensOf(logprobs: unknown): TokenProbability[] {
  return (logprobs as { content?: TokenProbability[] | null } | null | undefined)?.content ?? []
}

function olderCalls(
  finish: string | null,
  { tool_calls, ...delta }: NonNullable<ChunkChoice['delta']>
): Pick<ChunkChoice, 'finish_reason' | 'delta'> {
  const called = tool_calls?.find(({ index = 0 }) => index === 0)?.function
  return {
    finish_reason: finish === 'tool_calls' ? 'function_call' : finish,
    delta: called ? { ...delta, function_call: called } : delta
  }
}
