import type { Model } from '../../../core/contracts/catalog.ts'
import type { Delta, TokenUsage } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { PLAIN_FORMATS, type TranscriptionRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>

/** What is to be made of what is said. */
export type Task = 'transcribe' | 'translate'

/** As llama-server words it for its own transcriptions. */
const INSTRUCTIONS: Record<Task, string> = {
  transcribe: 'Transcribe audio to text',
  translate: 'Translate audio to English text'
}
/** The words that LFM2's audio models were trained with, in the place of instructions. */
const LFM2_SYSTEM = 'Perform ASR.'

/**
 * What a request for a transcript asks of a model that hears, as a chat.
 * @throws CorralError `unsupported_capability` for what no model of the engine's tells
 */
export function transcriptionChat(
  request: TranscriptionRequest,
  variant: Model,
  task: Task
): { messages: Fields[]; [field: string]: unknown } {
  const { file, language, prompt, response_format, timestamp_granularities, include } = request
  const timed = (param: string, asked: string) =>
    new CorralError(
      'unsupported_capability',
      `${asked} needs the moments at which words are said, which llama-server does not tell. Ask for the response_format "json" or "text".`,
      { param }
    )
  if (response_format && !PLAIN_FORMATS.some(format => format === response_format)) {
    throw timed('response_format', `The response_format "${response_format}"`)
  }
  if (timestamp_granularities?.length) throw timed('timestamp_granularities', '"timestamp_granularities"')
  const isLfm2 = variant.metadata.architecture === 'lfm2' && task === 'transcribe' && !prompt
  const words = isLfm2 ? '' : prompt || INSTRUCTIONS[task]
  const text = language ? `${words} (language: ${language})`.trimStart() : words
  return {
    messages: [
      ...(isLfm2 ? [{ role: 'system', content: LFM2_SYSTEM }] : []),
      {
        role: 'user',
        content: [
          ...(text === '' ? [] : [{ type: 'text', text }]),
          // A data URL may name any type; llama-server goes by the bytes.
          {
            type: 'input_audio',
            input_audio: { data: file.slice(file.startsWith('data:') ? file.indexOf(',') + 1 : 0) }
          }
        ]
      }
    ],
    ...(include?.includes('logprobs') && { logprobs: true }),
    // Nobody asked for thoughts about what was said.
    ...(variant.metadata.capabilities.includes('thinking') && { chat_template_kwargs: { enable_thinking: false } })
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
