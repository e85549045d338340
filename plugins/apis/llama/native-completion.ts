import type { AnswerWriter } from '../../../core/answers/pipeline.ts'
import type { Delta, EngineFields } from '../../../core/contracts/engines.ts'
import { isObject } from '../../../core/system/json-object.ts'

/** How a completion of this surface is written. */
export interface NativeHead {
  /** The model's name as it was requested. */
  model: string
  /** Whether progress of reading the prompt is wanted. */
  progress: boolean
  /** Whether the whole answer lists its tokens. */
  tokens: boolean
  /** The fields of the whole answer that are wanted, such as `generation_settings/n_predict`; all where absent. */
  fields?: readonly string[]
}

/** What is known of one choice so far. */
interface Choice {
  content: string
  tokens: unknown[]
  logprobs: unknown[]
  last: EngineFields
}

/** One answer in the words of llama-server: as events, or as a whole. */
export class NativeAnswer implements AnswerWriter {
  readonly #head: NativeHead
  readonly #choices: Choice[] = []

  constructor(head: NativeHead) {
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

  /** The answers as a whole, one for each prompt. */
  whole(): EngineFields[] {
    const { tokens: wanted, fields } = this.#head
    return this.#choices.map(({ content, tokens, logprobs, last }) => {
      const answer = {
        ...last,
        content,
        tokens: wanted ? tokens : [],
        ...(logprobs.length > 0 && { completion_probabilities: logprobs })
      }
      return fields ? picked(answer, fields) : answer
    })
  }

  /** Takes note of what the engine adds. @returns the event to send; none where it says nothing to clients */
  #note(delta: Delta): EngineFields | undefined {
    const { choice: index = 0, content = '', native = {}, logprobs, finish, usage, timing, reading } = delta
    if (reading && !this.#head.progress) return undefined
    this.#choices[index] ??= { content: '', tokens: [], logprobs: [], last: {} }
    const choice = this.#choices[index]
    // A plugin may have changed what the model said: then these are other tokens than the text's.
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
    // An event that ends nothing and adds nothing, such as the counts behind an answer.
    const isEmpty = content === '' && !finish && !reading && Object.keys(native).length === 0
    return isEmpty ? undefined : event
  }
}

/** Fields by their paths, which are their names in the answer too. */
function picked(answer: EngineFields, paths: readonly string[]): EngineFields {
  const found: EngineFields = {}
  for (const path of paths) {
    let value: unknown = answer
    for (const key of path.split('/')) value = isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
    if (value !== undefined) found[path] = value
  }
  return found
}
