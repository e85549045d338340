/** Token counts and times of one answer, as Ollama's clients read them. Durations are nanoseconds. */
export interface Counters {
  prompt_eval_count: number
  prompt_eval_duration: number
  eval_count: number
  eval_duration: number
}

/** A whole tool call, as Ollama's clients read it. */
export interface ToolCall {
  id?: string
  function: { name: string; arguments: unknown; index: number }
}

/** A piece of a tool call, as it comes. */
export interface ToolCallPiece {
  /** Which of the answer's calls it belongs to, from 0. */
  index: number
  /** Given with the first piece of a call. */
  id?: string
  /** The function's name, given with the first piece of a call. */
  name?: string
  /** What the piece adds to the JSON text of the arguments. */
  arguments: string
}

/** Tokens of one answer, as the engine counts them. */
export interface TokenUsage {
  /** All of the prompt, those found in the cache included. */
  promptTokens: number
  /** Those of the prompt that were found in the cache. */
  cachedTokens: number
  completionTokens: number
}

/** What one event of the engine's adds to the answer. */
export interface Delta {
  content: string
  thinking: string
  /** Whole calls, all given with the event that ends the answer. */
  toolCalls: ToolCall[]
  /** The same as they come, for clients that take them in pieces. */
  toolPieces?: ToolCallPiece[]
  /** `tool_calls` counts as `stop`. */
  finish?: 'stop' | 'length'
  /** The text of `stop` that ended the answer, where the engine was asked for it with `verbose: true`. */
  stopSequence?: string
  counters?: Counters
  usage?: TokenUsage
  /** Log probabilities of the piece's tokens, in the hosted-chat shape, where they were asked for. */
  logprobs?: unknown[]
  /** While the prompt is being read: 0 to 1. */
  promptRead?: number
  /** Tokens of the prompt, told before the first piece of the answer. */
  promptTokens?: number
  /** Those of them that were found in the cache, told with them. */
  cachedTokens?: number
  /** The engine's own error object, where it reports one in the stream. */
  error?: unknown
}

interface EngineEvent {
  choices?: {
    index?: number
    text?: string
    finish_reason?: string | null
    delta?: EngineMessage
    logprobs?: { content?: unknown[] | null } | null
  }[]
  timings?: { cache_n?: number; prompt_n: number; prompt_ms: number; predicted_n: number; predicted_ms: number }
  prompt_progress?: { total: number; cache?: number; processed: number }
  error?: unknown
  /** `/infill` answers in llama-server's own shape. */
  content?: string
  stop?: boolean
  stop_type?: string
  __verbose?: { stopping_word?: string }
}

interface EngineMessage {
  content?: string | null
  reasoning_content?: string | null
  tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[]
}

const MS_TO_NS = 1e6

function usageOf({ cache_n = 0, prompt_n, predicted_n }: NonNullable<EngineEvent['timings']>): TokenUsage {
  return { promptTokens: cache_n + prompt_n, cachedTokens: cache_n, completionTokens: predicted_n }
}

function countersOf(timings: NonNullable<EngineEvent['timings']>): Counters {
  return {
    prompt_eval_count: (timings.cache_n ?? 0) + timings.prompt_n,
    prompt_eval_duration: Math.round(timings.prompt_ms * MS_TO_NS),
    eval_count: timings.predicted_n,
    eval_duration: Math.round(timings.predicted_ms * MS_TO_NS)
  }
}

function parseArguments(text: string): unknown {
  try {
    return JSON.parse(text === '' ? '{}' : text)
  } catch {
    // An answer cut off in the middle of a call: what there is of it is given as it is.
    return text
  }
}

/** Reads llama-server's streamed answer of `/v1/chat/completions`, `/v1/completions` and `/infill`, event by event. */
export class AnswerReader {
  #calls: { id?: string; name: string; arguments: string }[] = []
  #stopWord = ''

  read(event: EngineEvent): Delta {
    const delta: Delta = { content: '', thinking: '', toolCalls: [] }
    if (event.error !== undefined) delta.error = event.error
    if (event.prompt_progress) {
      delta.promptRead = event.prompt_progress.processed / Math.max(1, event.prompt_progress.total)
      delta.promptTokens = event.prompt_progress.total
      delta.cachedTokens = event.prompt_progress.cache ?? 0
    }
    if (event.timings) {
      delta.counters = countersOf(event.timings)
      delta.usage = usageOf(event.timings)
    }
    // It comes with the first of the events that end the answer, the reason with the last.
    this.#stopWord = event.__verbose?.stopping_word || this.#stopWord
    const choice = event.choices?.[0]
    // One choice is read, whatever "n" among the options says.
    if (choice?.index) return delta
    const message = choice?.delta
    delta.content = message?.content ?? choice?.text ?? event.content ?? ''
    delta.thinking = message?.reasoning_content ?? ''
    if (choice?.logprobs?.content) delta.logprobs = choice.logprobs.content
    if (message?.tool_calls) delta.toolPieces = message.tool_calls.map(piece => this.#collect(piece))
    const finish = choice?.finish_reason ?? (event.stop ? event.stop_type : undefined)
    if (finish) {
      delta.finish = finish === 'length' || finish === 'limit' ? 'length' : 'stop'
      if (this.#stopWord) delta.stopSequence = this.#stopWord
      delta.toolCalls = this.#calls.splice(0).map((call, index) => ({
        ...(call.id ? { id: call.id } : {}),
        function: { name: call.name, arguments: parseArguments(call.arguments), index }
      }))
    }
    return delta
  }

  #collect(piece: NonNullable<EngineMessage['tool_calls']>[number]): ToolCallPiece {
    const index = piece.index ?? this.#calls.length
    this.#calls[index] ??= { name: '', arguments: '' }
    const call = this.#calls[index]
    const { name = '', arguments: text = '' } = piece.function ?? {}
    if (piece.id) call.id = piece.id
    call.name += name
    call.arguments += text
    return { index, ...(piece.id && { id: piece.id }), ...(name && { name }), arguments: text }
  }
}
