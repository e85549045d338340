import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { type Question, streamedAnswer, wholeAnswer } from '../../../core/answers/pipeline.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import type { Delta, EngineFields, TokenUsage } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions, topLevelOptions } from '../../../core/models/options.ts'
import { eventChannel, type OpenaiDependencies } from '../answer.ts'
import { PLAIN_FORMATS, type TranscriptionRequest } from './request-schemas.ts'

const frame = (event: object) => `data: ${JSON.stringify(event)}\n\n`

/** Answers with what is said in a sound, loading the model first where needed. */
export async function transcribe(
  deps: OpenaiDependencies,
  request: FastifyRequest<{ Body: TranscriptionRequest }>,
  reply: FastifyReply,
  task: Task
): Promise<unknown> {
  const { body } = request
  const model = parseModelName(body.model ?? body.name)
  const variant = deps.catalog.get(model)
  const settings = settingsFor(deps.config, variant)
  const fields = transcriptionFields(body, task)
  const part = { type: 'input_audio', input_audio: { data: fields.audio } }
  checkMedia([{ content: [part] }], variant, settings.engine, () => 'file')
  const options = parseOptions(topLevelOptions(body))
  const question: Question = {
    operation: 'transcribe',
    body: { ...settings.sampling, ...options.sampling, ...fields },
    lease: { model, options: options.load, keepAlive: parseKeepAlive(body.keep_alive) },
    variant,
    overflow: 'error'
  }
  if (!body.stream) {
    const transcript = await wholeAnswer(deps, reply, question, () => new Transcript())
    if (body.response_format !== 'text') return transcript.whole()
    return reply.type('text/plain; charset=utf-8').send(`${transcript.text}\n`)
  }
  return await streamedAnswer(deps, request, reply, question, eventChannel(deps.heartbeat), () => {
    const transcript = new Transcript()
    return {
      add: deltas => transcript.add(deltas).map(frame).join(''),
      end: () => `${frame(transcript.done())}data: [DONE]\n\n`
    }
  })
}

type Fields = Record<string, unknown>

/** What becomes of what is said. */
type Task = 'transcribe' | 'translate'

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
