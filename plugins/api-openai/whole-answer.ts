import type { Chunk, ChunkChoice } from './chunk-wording.ts'
import type { OlderLogprobs, TokenProbability } from './logprobs.ts'

interface Call {
  id?: string
  type: string
  function: { name: string; arguments: string }
}

interface Message {
  role: 'assistant'
  content: string | null
  refusal: null
  reasoning_content?: string
  tool_calls?: Call[]
  function_call?: Call['function']
}

export interface Choice {
  index: number
  finish_reason: string | null
  text?: string
  message?: Message
  /** Of chat completions, or of completions. */
  logprobs: { content: TokenProbability[]; refusal: null } | OlderLogprobs | null
}

/**
 * Puts a streamed answer together to a whole one. llama-server is asked for streams only, because it notices that the
 * asker of an unstreamed answer has gone only while nothing else is generated.
 */
export class WholeAnswer {
  /** What belongs to the answer as a whole: id, usage, timings and so on. */
  #fields: Record<string, unknown> = {}
  readonly #choices: Choice[] = []

  add(chunk: Chunk): void {
    const { choices, object, ...fields } = chunk
    // Of what comes with each choice, such as timings, llama-server's own whole answer has the first.
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
      const at = piece.index ?? message.tool_calls.length
      message.tool_calls[at] ??= { type: 'function', function: { name: '', arguments: '' } }
      if (piece.id) message.tool_calls[at].id = piece.id
      addCall(message.tool_calls[at].function, piece.function)
    }
    if (delta.function_call) {
      message.function_call ??= { name: '', arguments: '' }
      addCall(message.function_call, delta.function_call)
    }
  }
}

function addCall(call: Call['function'], piece: Partial<Call['function']> | undefined): void {
  call.name += piece?.name ?? ''
  call.arguments += piece?.arguments ?? ''
}

/** What is told of further tokens is put behind what is known. */
function joinedLogprobs(known: Choice['logprobs'], more: NonNullable<Choice['logprobs']>): Choice['logprobs'] {
  if (!known) return more
  const lists = known as unknown as Record<string, unknown[] | null>
  for (const [name, values] of Object.entries(more)) if (Array.isArray(values)) lists[name]?.push(...values)
  return known
}
