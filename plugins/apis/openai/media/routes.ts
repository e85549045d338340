import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { eventChannel } from '../../../../core/answers/event-channel.ts'
import { withUsableMedia } from '../../../../core/answers/media-parts.ts'
import type { ConfiguredApi } from '../../../../core/answers/model-request.ts'
import type { Question } from '../../../../core/answers/question.ts'
import type { EngineFields } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiErrorEvent, openaiRouter } from '../../../../core/http/openai-error.ts'
import { Given, ignored, keep_alive, ListOf, Loose, named, Titled } from '../../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { LoadOptionsSchema } from '../../../../core/models/load-options.ts'
import { unsupportedOperation } from '../../../../core/models/model-operations.ts'
import { SamplingOptionsSchema } from '../../../../core/models/options.ts'
import { DONE, frame } from '../answer.ts'
import { acceptForms } from './form-body.ts'
import { imageRoutes } from './images.ts'
import { speechRoutes } from './speech.ts'
import { Transcript } from './transcript.ts'

const FORM = 'multipart/form-data'

const Count = Type.Integer({ minimum: 0 })
const TranscriptSchema = Loose({
  text: Type.String(),
  logprobs: Type.Optional(ListOf({ token: Type.String(), logprob: Type.Number(), bytes: Type.Array(Count) })),
  usage: Loose({
    type: Type.Enum(['tokens', 'duration']),
    input_tokens: Type.Optional(Count),
    output_tokens: Type.Optional(Count),
    total_tokens: Type.Optional(Count),
    seconds: Type.Optional(Count)
  }),
  task: Type.Optional(Type.String()),
  language: Type.Optional(Type.String()),
  duration: Type.Optional(Type.Number({ description: 'Seconds' })),
  segments: Type.Optional(ListOf({ id: Count, start: Type.Number(), end: Type.Number(), text: Type.String() })),
  words: Type.Optional(ListOf({ word: Type.String(), start: Type.Number(), end: Type.Number() }))
})

const REPLY = jsonOrStream(
  'The transcript. verbose_json adds times; text, srt and vtt are plain text',
  TranscriptSchema,
  {
    event:
      'Events `data: {"type":"transcript.text.delta","delta":…}`, one `data: {"type":"transcript.text.done","text":…,"usage":…}`, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.'
  }
)

const TEXT_TYPES = {
  text: 'text/plain; charset=utf-8',
  srt: 'application/x-subrip; charset=utf-8',
  vtt: 'text/vtt; charset=utf-8'
}
const TEXTS = Object.fromEntries(
  Object.values(TEXT_TYPES).map(type => [type.split(';')[0]!, { schema: Type.String() }])
)

const TRANSCRIBING = [
  ['/audio/transcriptions', 'transcribe', 'Transcribe speech', 'createTranscription'],
  ['/audio/translations', 'translate', 'Translate speech into English text', 'createTranslation']
] as const

export function mediaRoutes(app: FastifyInstance, deps: ConfiguredApi): void {
  const route = openaiRouter(app, 'OpenAI audio and images')
  acceptForms(app)
  speechRoutes(app, deps)
  imageRoutes(app, deps)
  for (const [path, task, summary, operationId] of TRANSCRIBING) {
    route(`POST ${path}`, operationId, summary, {
      consumes: [FORM, 'application/json'],
      body: TranscriptionRequest,
      response: { 200: { ...REPLY, content: { ...REPLY.content, ...TEXTS } } },
      errors: ANSWER_ERRORS,
      handler: (request, reply) => transcribe(deps, request, reply, task)
    })
  }
}

const { temperature, max_tokens, seed } = SamplingOptionsSchema.properties
const PLAIN_FORMATS = ['json', 'text']
/** These need to know when each part was said. */
const TIMED_FORMATS = ['verbose_json', 'srt', 'vtt']

export const TranscriptionRequest = Titled('TranscriptionRequest', {
  ...named,
  // A file in a form, or its base64 in JSON.
  file: Type.Unsafe<string>({
    type: 'string',
    contentMediaType: 'application/octet-stream'
  }),
  language: Given(Type.String()),
  prompt: Given(Type.String()),
  response_format: Given(Type.Enum([...PLAIN_FORMATS, ...TIMED_FORMATS, 'diarized_json'])),
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
  const format = response_format ?? 'json'
  const { variant, settings, sampling, options, lease } = deps.answers.read(request.body, request.caller)
  const { capabilities } = variant.metadata
  /** Other models that hear are text models. They are prompted for the task. */
  const isRecognizer = capabilities.includes('transcribe')
  if (isRecognizer && !capabilities.includes(task)) throw unsupportedOperation(`Model "${variant.publicName}"`, task)
  const fields = transcriptionFields(request.body, task, isRecognizer)
  const part = { type: 'input_audio', input_audio: { data: fields.audio } }
  const [usable] = withUsableMedia([{ content: [part] as unknown[] }], variant, settings.engine, () => 'file')
  const [heard] = usable!.content
  const body = { ...(isRecognizer ? options.sampling : sampling), ...fields, ...(heard !== part && { audio: heard }) }
  const operation = isRecognizer ? task : 'transcribe'
  const question: Question = { operation, body, lease, variant, overflow: 'error' }
  if (!stream) {
    const transcript = await deps.answers.whole(reply, question, () => new Transcript())
    return formatted(transcript, task, request.body, reply)
  }
  if (!PLAIN_FORMATS.includes(format)) {
    const message = `Streams have no response_format "${format}". Leave out "stream", or use "json".`
    throw new CorralError('unsupported_capability', message, { param: 'stream' })
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

/** @throws CorralError `unsupported_capability` if the engine reports no times */
function formatted(
  transcript: Transcript,
  task: Task,
  { response_format, timestamp_granularities }: TranscriptionRequest,
  reply: FastifyReply
): unknown {
  const format = response_format ?? 'json'
  if (TIMED_FORMATS.includes(format) && !transcript.isTimed) throw timeless('response_format', format)
  if (format === 'verbose_json') {
    return transcript.verbose(task, timestamp_granularities?.length ? timestamp_granularities : ['segment'])
  }
  if (format === 'srt') return reply.type(TEXT_TYPES.srt).send(transcript.subtitles(','))
  if (format === 'vtt') return reply.type(TEXT_TYPES.vtt).send(transcript.subtitles('.'))
  if (format === 'text') return reply.type(TEXT_TYPES.text).send(`${transcript.text}\n`)
  return transcript.whole()
}

const timeless = (param: string, value: string) => {
  const message = `"${value}" needs times, which the engine of this model does not report. Use the response_format "json" or "text".`
  return new CorralError('unsupported_capability', message, { param })
}

/** Builds the engine's request. @throws CorralError `unsupported_capability` for times that the model does not report */
export function transcriptionFields(
  request: TranscriptionRequest,
  task: Task,
  isRecognizer = false
): EngineFields & { audio: string } {
  const { file, language, prompt, response_format, timestamp_granularities, include } = request
  const format = response_format ?? 'json'
  if (format === 'diarized_json' || (!isRecognizer && TIMED_FORMATS.includes(format))) {
    throw timeless('response_format', format)
  }
  if (timestamp_granularities?.length && (format !== 'verbose_json' || !isRecognizer)) {
    throw timeless('timestamp_granularities', timestamp_granularities.join())
  }
  return {
    // The type in a data URL is ignored, because engines detect it from the bytes.
    audio: file.slice(file.startsWith('data:') ? file.indexOf(',') + 1 : 0),
    ...(language && { language }),
    ...(prompt && { prompt }),
    ...(task === 'translate' && { translate: true }),
    ...(TIMED_FORMATS.includes(format) && { timed: true }),
    ...(include?.includes('logprobs') && { logprobs: true })
  }
}
