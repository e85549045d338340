import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { eventChannel } from '../../../../core/answers/event-channel.ts'
import { withUsableMedia } from '../../../../core/answers/media-parts.ts'
import { type ConfiguredApi, readModelRequest } from '../../../../core/answers/model-request.ts'
import type { Question } from '../../../../core/answers/question.ts'
import type { Delta, EngineFields, TokenUsage } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiErrorEvent, openaiRouter } from '../../../../core/http/openai-error.ts'
import { Given, ignored, keep_alive, ListOf, Loose, named, Titled } from '../../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { LoadOptionsSchema } from '../../../../core/models/load-options.ts'
import { parseRequestedName } from '../../../../core/models/model-name.ts'
import { SamplingOptionsSchema } from '../../../../core/models/options.ts'
import { DONE, frame } from '../answer.ts'
import { acceptForms } from './form-body.ts'

const FORM = 'multipart/form-data'

const Count = Type.Integer({ minimum: 0 })
const TranscriptSchema = Loose({
  text: Type.String(),
  logprobs: Type.Optional(ListOf({ token: Type.String(), logprob: Type.Number(), bytes: Type.Array(Count) })),
  usage: Loose({ type: Type.Literal('tokens'), input_tokens: Count, output_tokens: Count, total_tokens: Count })
})

const REPLY = jsonOrStream('The transcript; with the response_format "text" only its text', TranscriptSchema, {
  event:
    'Events `data: {"type":"transcript.text.delta","delta":…}`, one `data: {"type":"transcript.text.done","text":…,"usage":…}`, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.'
})

const TRANSCRIBING = [
  ['/audio/transcriptions', 'transcribe', 'Transcribe speech', 'createTranscription'],
  ['/audio/translations', 'translate', 'Translate speech into English text', 'createTranslation']
] as const

const SpeechRequest = Loose({
  ...named,
  input: Given(Type.String()),
  voice: Given(Type.Union([Type.String(), Loose({})]))
})
const ImageRequest = Loose({ ...named, prompt: Given(Type.String()) })

const UNSUPPORTED = [
  ['/audio/speech', 'createSpeech', 'speak', SpeechRequest, ['application/json']],
  ['/images/generations', 'createImage', 'make images', ImageRequest, ['application/json']],
  ['/images/edits', 'createImageEdit', 'make images', ImageRequest, [FORM, 'application/json']],
  ['/images/variations', 'createImageVariation', 'make images', ImageRequest, [FORM, 'application/json']]
] as const

export function mediaRoutes(app: FastifyInstance, deps: ConfiguredApi): void {
  const route = openaiRouter(app, 'OpenAI audio and images')
  acceptForms(app)
  for (const [path, task, summary, operationId] of TRANSCRIBING) {
    route(`POST ${path}`, operationId, summary, {
      consumes: [FORM, 'application/json'],
      body: TranscriptionRequest,
      response: { 200: { ...REPLY, content: { ...REPLY.content, 'text/plain': { schema: Type.String() } } } },
      errors: ANSWER_ERRORS,
      handler: (request, reply) => transcribe(deps, request, reply, task)
    })
  }
  for (const [path, operationId, what, body, consumes] of UNSUPPORTED) {
    const summary = `Reports that no model can ${what} here`
    route(`POST ${path}`, operationId, summary, {
      consumes: [...consumes],
      body,
      bodySize: 'large',
      errors: ['invalid_model_name', 'model_not_found', 'unsupported_capability'],
      handler: async request => {
        const { publicName } = catalogFor(deps.catalog, request.caller).get(
          parseRequestedName(request.body.model ?? request.body.name)
        )
        throw new CorralError(
          'unsupported_capability',
          `Model "${publicName}" cannot ${what} because the engines here only generate text. Use another service.`,
          { param: 'model' }
        )
      }
    })
  }
}

type Fields = Record<string, unknown>

const { temperature, max_tokens, seed } = SamplingOptionsSchema.properties
/** The other formats need word timestamps, which engines do not report. */
const PLAIN_FORMATS = ['json', 'text']
const TIMED_FORMATS = ['verbose_json', 'srt', 'vtt', 'diarized_json']

export const TranscriptionRequest = Titled('TranscriptionRequest', {
  ...named,
  // A file in a form, or its base64 in JSON.
  file: Type.Unsafe<string>({
    type: 'string',
    contentMediaType: 'application/octet-stream'
  }),
  language: Given(Type.String()),
  prompt: Given(Type.String()),
  response_format: Given(Type.Enum([...PLAIN_FORMATS, ...TIMED_FORMATS])),
  temperature: Given(temperature),
  max_tokens: Given(max_tokens),
  seed: Given(seed),
  num_ctx: Given(LoadOptionsSchema.properties.num_ctx),
  keep_alive,
  stream: Given(Type.Boolean()),
  include: Given(Type.Array(Type.String())),
  timestamp_granularities: Given(Type.Array(Type.String())),
  ...ignored('chunking_strategy', 'known_speaker_names', 'known_speaker_references')
})
export type TranscriptionRequest = Static<typeof TranscriptionRequest>

type Task = 'transcribe' | 'translate'

export async function transcribe(
  deps: ConfiguredApi,
  request: FastifyRequest<{ Body: TranscriptionRequest }>,
  reply: FastifyReply,
  task: Task
): Promise<unknown> {
  const { stream, response_format } = request.body
  const { variant, settings, sampling, lease } = readModelRequest(deps, request.body, request.caller)
  const fields = transcriptionFields(request.body, task)
  const part = { type: 'input_audio', input_audio: { data: fields.audio } }
  withUsableMedia([{ content: [part] }], variant, settings.engine, () => 'file')
  const body = { ...sampling, ...fields }
  const question: Question = { operation: 'transcribe', body, lease, variant, overflow: 'error' }
  if (!stream) {
    const transcript = await deps.answers.whole(reply, question, () => new Transcript())
    if (response_format !== 'text') return transcript.whole()
    return reply.type('text/plain; charset=utf-8').send(`${transcript.text}\n`)
  }
  const idle = () => frame({ type: 'transcript.text.delta', delta: '' })
  const channel = eventChannel(deps.heartbeat(), openaiErrorEvent, idle)
  return await deps.answers.stream(reply, question, channel, () => {
    const transcript = new Transcript()
    return {
      add: deltas => transcript.add(deltas).map(frame).join(''),
      end: () => `${frame(transcript.done())}${DONE}`
    }
  })
}

/** Builds the engine's request. @throws CorralError `unsupported_capability` for timestamps */
export function transcriptionFields(request: TranscriptionRequest, task: Task): EngineFields & { audio: string } {
  const { file, language, prompt, response_format, timestamp_granularities, include } = request
  const timed = (param: string, what: string) =>
    new CorralError(
      'unsupported_capability',
      `${what} needs word timestamps, which engines do not report. Use the response_format "json" or "text".`,
      { param }
    )
  if (response_format && !PLAIN_FORMATS.includes(response_format)) {
    throw timed('response_format', `The response_format "${response_format}"`)
  }
  if (timestamp_granularities?.length) throw timed('timestamp_granularities', '"timestamp_granularities"')
  return {
    // The type in a data URL is ignored, because engines detect it from the bytes.
    audio: file.slice(file.startsWith('data:') ? file.indexOf(',') + 1 : 0),
    ...(language && { language }),
    ...(prompt && { prompt }),
    ...(task === 'translate' && { translate: true }),
    ...(include?.includes('logprobs') && { logprobs: true })
  }
}

export class Transcript {
  #logprobs: Fields[] = []
  #usage: TokenUsage | undefined
  text = ''

  add(deltas: readonly Delta[]): Fields[] {
    const events: Fields[] = []
    for (const { choice, content, logprobs, usage } of deltas) {
      if (choice) continue
      this.#usage = usage ?? this.#usage
      const tokenFields = logprobs?.map(({ token, logprob, bytes }) => ({ token, logprob, bytes }))
      this.#logprobs.push(...(tokenFields ?? []))
      if (!content) continue
      this.text += content
      events.push({ type: 'transcript.text.delta', delta: content, ...(tokenFields && { logprobs: tokenFields }) })
    }
    return events
  }

  whole(): Fields {
    const { promptTokens = 0, completionTokens = 0 } = this.#usage ?? {}
    return {
      text: this.text,
      ...(this.#logprobs.length > 0 && { logprobs: this.#logprobs }),
      usage: {
        type: 'tokens',
        input_tokens: promptTokens,
        output_tokens: completionTokens,
        total_tokens: promptTokens + completionTokens
      }
    }
  }

  done(): Fields {
    return { type: 'transcript.text.done', ...this.whole() }
  }
}
