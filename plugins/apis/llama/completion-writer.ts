import type { AnswerWriter } from '../../../core/answers/pipeline.ts'
import type { Delta, EngineFields } from '../../../core/contracts/engines.ts'
import { isObject } from '../../../core/system/json-object.ts'

export interface CompletionOptions {
  /** The model's name as in the request. */
  model: string
  /** Whether prompt-processing progress is sent. */
  progress: boolean
  /** Whether the complete answer lists its tokens. */
  tokens: boolean
  /** Fields to include in the complete answer, such as `generation_settings/n_predict`. All fields if absent. */
  fields?: readonly string[]
}

interface Choice {
  content: string
  tokens: unknown[]
  logprobs: unknown[]
  last: EngineFields
}

/** Writes an answer in llama-server's own format, as events or as a whole. */
export class CompletionWriter implements AnswerWriter {
  readonly #head: CompletionOptions
  readonly #choices: Choice[] = []

  constructor(head: CompletionOptions) {
    this.#head = head
  }

  add(deltas: readonly Delta[]): string {
    let text = ''
    for (const delta of deltas) {
      const event = this.#note(delta)
      if (event) text += `data: ${JSON.stringify(event)}\n\n`
    }
    return text
  }

  end(): string {
    return ''
  }

  /** Returns the complete answers, one for each prompt. */
  whole(): EngineFields[] {
    const { tokens: wanted, fields } = this.#head
    return this.#choices.map(({ content, tokens, logprobs, last }) => {
      const answer = {
        ...last,
        content,
        tokens: wanted ? tokens : [],
        ...(logprobs.length > 0 && { completion_probabilities: logprobs })
      }
      return fields ? pickFields(answer, fields) : answer
    })
  }

  /** Adds a delta to the answer. @returns the event to send, or undefined if clients see no change */
  #note(delta: Delta): EngineFields | undefined {
    const { choice: index = 0, content = '', native = {}, logprobs, finish, usage, timing, reading } = delta
    if (reading && !this.#head.progress) return undefined
    this.#choices[index] ??= { content: '', tokens: [], logprobs: [], last: {} }
    const choice = this.#choices[index]
    // A plugin may have changed the text. The engine's tokens then no longer match it.
    const isOwn = content === (native.content ?? '')
    const tokens = isOwn && Array.isArray(native.tokens) ? native.tokens : []
    const { completion_probabilities: _, ...rest } = native
    const event: EngineFields = {
      ...rest,
      index,
      content,
      tokens,
      stop: finish !== undefined,
      ...(logprobs && isOwn && { completion_probabilities: logprobs }),
      ...(finish && {
        model: this.#head.model,
        stop_type: native.stop_type ?? (finish === 'length' ? 'limit' : delta.stopSequence ? 'word' : 'eos'),
        stopping_word: native.stopping_word ?? delta.stopSequence ?? '',
        tokens_predicted: usage?.completionTokens ?? native.tokens_predicted,
        tokens_evaluated: usage?.promptTokens ?? native.tokens_evaluated,
        truncated: native.truncated ?? false,
        timings: native.timings ?? (timing && { prompt_ms: timing.prompt, predicted_ms: timing.generation })
      })
    }
    choice.content += content
    choice.tokens.push(...tokens)
    if (logprobs && isOwn) choice.logprobs.push(...logprobs)
    if (finish) choice.last = event
    // Some deltas only carry counts.
    const isEmpty = content === '' && !finish && !reading && Object.keys(native).length === 0
    return isEmpty ? undefined : event
  }
}

/** Picks fields by their paths. The paths are also the keys of the result. */
function pickFields(answer: EngineFields, paths: readonly string[]): EngineFields {
  const found: EngineFields = {}
  for (const path of paths) {
    let value: unknown = answer
    for (const key of path.split('/')) value = isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
    if (value !== undefined) found[path] = value
  }
  return found
}
