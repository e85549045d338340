import type { Delta, EngineFields, TokenUsage } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { PLAIN_FORMATS, type TranscriptionRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>

/** What becomes of what is said. */
export type Task = 'transcribe' | 'translate'

/**
 * What a request for a transcript asks of an engine.
 * @throws CorralError `unsupported_capability` for what no engine gives
 */
export function transcriptionFields(request: TranscriptionRequest, task: Task): EngineFields & { audio: string } {
  const { file, language, prompt, response_format, timestamp_granularities, include } = request
  const timed = (param: string, asked: string) =>
    new CorralError(
      'unsupported_capability',
      `${asked} needs the times at which words are said, which engines do not give. Ask for the response_format "json" or "text".`,
      { param }
    )
  if (response_format && !PLAIN_FORMATS.some(format => format === response_format)) {
    throw timed('response_format', `The response_format "${response_format}"`)
  }
  if (timestamp_granularities?.length) throw timed('timestamp_granularities', '"timestamp_granularities"')
  return {
    // A data URL may name any type; engines go by the bytes.
    audio: file.slice(file.startsWith('data:') ? file.indexOf(',') + 1 : 0),
    ...(language && { language }),
    ...(prompt && { prompt }),
    ...(task === 'translate' && { translate: true }),
    ...(include?.includes('logprobs') && { logprobs: true })
  }
}

/** Puts a transcript together and writes its events. */
export class Transcript {
  #text = ''
  #logprobs: Fields[] | undefined
  #usage: TokenUsage | undefined

  /** The events for what is added, where it has text. */
  add(deltas: readonly Delta[]): Fields[] {
    const events: Fields[] = []
    for (const { choice, content, logprobs, usage } of deltas) {
      if (choice) continue
      this.#usage = usage ?? this.#usage
      const likely = logprobs?.map(({ token, logprob, bytes }) => ({ token, logprob, bytes }))
      if (likely) this.#logprobs = [...(this.#logprobs ?? []), ...likely]
      if (!content) continue
      this.#text += content
      events.push({ type: 'transcript.text.delta', delta: content, ...(likely && { logprobs: likely }) })
    }
    return events
  }

  get text(): string {
    return this.#text
  }

  whole(): Fields {
    const { promptTokens = 0, completionTokens = 0 } = this.#usage ?? {}
    return {
      text: this.#text,
      ...(this.#logprobs && { logprobs: this.#logprobs }),
      usage: {
        type: 'tokens',
        input_tokens: promptTokens,
        output_tokens: completionTokens,
        total_tokens: promptTokens + completionTokens
      }
    }
  }

  /** The last event of a stream. */
  done(): Fields {
    return { type: 'transcript.text.done', ...this.whole() }
  }
}
