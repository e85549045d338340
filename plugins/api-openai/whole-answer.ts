/** A piece of an answer as llama-server streams it, of chat completions or of completions. */
interface Chunk {
  object: string
  choices: ChunkChoice[]
  [other: string]: unknown
}

interface ChunkChoice {
  index: number
  finish_reason: string | null
  logprobs?: { content?: unknown[] } | null
  /** Of completions. */
  text?: string
  /** Of chat completions. */
  delta?: {
    content?: string | null
    reasoning_content?: string | null
    tool_calls?: ToolCallPiece[]
  }
}

interface ToolCallPiece {
  index?: number
  id?: string
  type?: string
  function?: { name?: string; arguments?: string }
}

interface Message {
  role: 'assistant'
  content: string
  reasoning_content?: string
  tool_calls?: { id?: string; type: string; function: { name: string; arguments: string } }[]
}

interface Choice {
  index: number
  finish_reason: string | null
  text?: string
  message?: Message
  logprobs?: { content: unknown[] } | null
}

/**
 * Puts a streamed answer together to the one that llama-server gives unstreamed. It is asked for streams only, because
 * it notices that the asker of an unstreamed answer has gone only while nothing else is generated.
 */
export class WholeAnswer {
  /** What belongs to the answer as a whole: id, usage, timings and so on. */
  #fields: Record<string, unknown> = {}
  #choices: Choice[] = []

  /** @param chunk the JSON of one event; `null`, with which the engine begins further choices, is passed over */
  add(chunk: Chunk | null): void {
    if (!chunk) return
    const { choices, object, ...fields } = chunk
    // Of the counts that come with each choice, llama-server's own whole answer has the first.
    this.#fields = { ...fields, ...this.#fields, object: object.replace('.chunk', '') }
    for (const piece of choices) this.#addTo(this.#choice(piece), piece)
  }

  /** The answer; its choices in their order. */
  body(): Record<string, unknown> {
    return { choices: this.#choices.filter(choice => choice !== undefined), ...this.#fields }
  }

  #choice({ index, delta }: ChunkChoice): Choice {
    this.#choices[index] ??= {
      index,
      finish_reason: null,
      ...(delta ? { message: { role: 'assistant', content: '' } } : { text: '', logprobs: null })
    }
    return this.#choices[index]
  }

  #addTo(choice: Choice, { delta, text, logprobs, finish_reason }: ChunkChoice): void {
    choice.finish_reason = finish_reason ?? choice.finish_reason
    if (logprobs?.content) {
      choice.logprobs ??= { content: [] }
      choice.logprobs.content.push(...logprobs.content)
    }
    if (choice.text !== undefined) choice.text += text ?? ''
    const { message } = choice
    if (!message || !delta) return
    message.content += delta.content ?? ''
    if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? '') + delta.reasoning_content
    for (const piece of delta.tool_calls ?? []) addToolCall(message, piece)
  }
}

function addToolCall(message: Message, piece: ToolCallPiece): void {
  message.tool_calls ??= []
  const at = piece.index ?? message.tool_calls.length
  message.tool_calls[at] ??= { type: 'function', function: { name: '', arguments: '' } }
  const call = message.tool_calls[at]
  if (piece.id) call.id = piece.id
  call.function.name += piece.function?.name ?? ''
  call.function.arguments += piece.function?.arguments ?? ''
}
