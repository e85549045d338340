/** Token counts and times of one answer, as Ollama's clients read them. Durations are nanoseconds. */
export interface Counters {
  prompt_eval_count: number
  prompt_eval_duration: number
  eval_count: number
  eval_duration: number
}

export interface ToolCall {
  id?: string
  function: { name: string; arguments: unknown; index: number }
}

/** What one event of the engine's adds to the answer. */
export interface Delta {
  content: string
  thinking: string
  toolCalls: ToolCall[]
  finish?: 'stop' | 'length'
  counters?: Counters
  /** 0 to 1 while the prompt is being read. */
  promptRead?: number
  /** The engine's own error object, where it reports one in the stream. */
  error?: unknown
}

interface EngineEvent {
  choices?: {
    index?: number
    text?: string
    finish_reason?: string | null
    delta?: EngineMessage
  }[]
  timings?: { cache_n?: number; prompt_n: number; prompt_ms: number; predicted_n: number; predicted_ms: number }
  prompt_progress?: { total: number; processed: number }
  error?: unknown
  /** `/infill` answers in llama-server's own shape. */
  content?: string
  stop?: boolean
  stop_type?: string
}

interface EngineMessage {
  content?: string | null
  reasoning_content?: string | null
  tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[]
}

const MS_TO_NS = 1e6

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

/**
 * Reads llama-server's streamed answer of `/v1/chat/completions`, `/v1/completions` and `/infill`. Tool calls
 * come in pieces; they are given once complete, because native clients expect whole ones.
 */
export class AnswerReader {
  #calls: { id?: string; name: string; arguments: string }[] = []

  read(event: EngineEvent): Delta {
    const delta: Delta = { content: '', thinking: '', toolCalls: [] }
    if (event.error !== undefined) delta.error = event.error
    if (event.prompt_progress) {
      delta.promptRead = event.prompt_progress.processed / Math.max(1, event.prompt_progress.total)
    }
    if (event.timings) delta.counters = countersOf(event.timings)
    const choice = event.choices?.[0]
    // Native answers have one choice, whatever "n" among the options says.
    if (choice?.index) return delta
    const message = choice?.delta
    delta.content = message?.content ?? choice?.text ?? event.content ?? ''
    delta.thinking = message?.reasoning_content ?? ''
    for (const piece of message?.tool_calls ?? []) this.#collect(piece)
    const finish = choice?.finish_reason ?? (event.stop ? event.stop_type : undefined)
    if (finish) {
      delta.finish = finish === 'length' || finish === 'limit' ? 'length' : 'stop'
      delta.toolCalls = this.#calls.splice(0).map((call, index) => ({
        ...(call.id ? { id: call.id } : {}),
        function: { name: call.name, arguments: parseArguments(call.arguments), index }
      }))
    }
    return delta
  }

  #collect(piece: NonNullable<EngineMessage['tool_calls']>[number]): void {
    const index = piece.index ?? this.#calls.length
    this.#calls[index] ??= { name: '', arguments: '' }
    const call = this.#calls[index]
    if (piece.id) call.id = piece.id
    call.name += piece.function?.name ?? ''
    call.arguments += piece.function?.arguments ?? ''
  }
}
