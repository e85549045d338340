import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { eventChannel } from '../../../../core/answers/event-channel.ts'
import type { ConfiguredApi } from '../../../../core/answers/model-request.ts'
import type { Question } from '../../../../core/answers/question.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiErrorEvent, openaiRouter } from '../../../../core/http/openai-error.ts'
import { Given, Items, ignored, keep_alive, Loose, named, Titled } from '../../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, json } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { frame } from '../answer.ts'
import { openSoundEncoder, SOUND_TYPES, type SoundFormat } from './sound-format.ts'

/** Characters; about half an hour of speech. */
const MAX_INPUT_LENGTH = 32_768
/** OpenAI's own voices, which many clients request without a choice. Models speak with their usual voice instead. */
const OPENAI_VOICES = new Set('alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse'.split(' '))

const SpeechRequest = Titled('SpeechRequest', {
  ...named,
  input: Type.String({
    pattern: '\\S',
    maxLength: MAX_INPUT_LENGTH,
    title: `text of 1 to ${MAX_INPUT_LENGTH} characters`
  }),
  voice: Given(Type.Union([Type.String(), Loose({ id: Type.String() })])),
  response_format: Given(Type.Enum(Object.keys(SOUND_TYPES))),
  speed: Given(Type.Number({ minimum: 0.25, maximum: 4 })),
  stream_format: Given(Type.Enum(['audio', 'sse'])),
  keep_alive,
  ...ignored('instructions')
})
type SpeechRequest = Static<typeof SpeechRequest>

const VoiceList = Loose({
  object: Type.Literal('list'),
  data: Items('Voices', {
    id: Type.String(),
    name: Type.String(),
    model: Type.String(),
    language: Type.Optional(Type.String())
  })
})

const sound = (type: string) => [type, { schema: Type.Unsafe({ type: 'string', format: 'binary' }) }] as const

export function speechRoutes(app: FastifyInstance, deps: ConfiguredApi): void {
  const route = openaiRouter(app, 'OpenAI audio and images')
  route('POST /audio/speech', 'createSpeech', 'Speak a text', {
    body: SpeechRequest,
    response: {
      200: {
        description: 'The sound. Events are `data: {"type":"speech.audio.delta","audio":…}` and `speech.audio.done`',
        content: Object.fromEntries([...Object.values(SOUND_TYPES), 'text/event-stream'].map(sound))
      }
    },
    errors: ANSWER_ERRORS,
    handler: (request, reply) => speak(deps, request, reply)
  })
  route('GET /audio/voices', 'listVoices', 'List the voices of models that speak', {
    response: { 200: json('The voices that the caller may use', VoiceList) },
    handler: ({ caller }) => {
      const speaking = catalogFor(deps.catalog, caller)
        .list()
        .filter(({ metadata: { capabilities } }) => capabilities.includes('speak'))
      const data = speaking.flatMap(({ publicName, metadata: { voices = [], info } }) =>
        voices.map(id => {
          const language = info['general.language']
          return { id, name: id, model: publicName, ...(typeof language === 'string' && { language }) }
        })
      )
      return { object: 'list' as const, data }
    }
  })
}

async function speak(
  deps: ConfiguredApi,
  request: FastifyRequest<{ Body: SpeechRequest }>,
  reply: FastifyReply
): Promise<unknown> {
  const { input, voice, speed, response_format, stream_format } = request.body
  const { variant, lease } = deps.answers.read(request.body, request.caller)
  const format = (response_format ?? 'mp3') as SoundFormat
  const wanted = voiceOf(variant, typeof voice === 'object' ? voice?.id : voice)
  const body = { input, ...(wanted !== undefined && { voice: wanted }), ...(speed && { speed }) }
  const question: Question = { operation: 'speak', body, lease, variant, overflow: 'error' }
  if (stream_format !== 'sse') return await deps.answers.result(reply, question, () => openSoundEncoder(format))
  const event = (bytes: Uint8Array) =>
    frame({ type: 'speech.audio.delta', audio: Buffer.from(bytes).toString('base64') })
  const channel = eventChannel(deps.heartbeat(), openaiErrorEvent, () =>
    frame({ type: 'speech.audio.delta', audio: '' })
  )
  return await deps.answers.stream(reply, question, channel, async () => {
    const encoder = await openSoundEncoder(format)
    let tokens = 0
    return {
      add(deltas) {
        tokens = deltas.at(-1)?.usage?.promptTokens ?? tokens
        return deltas.map(delta => event(encoder.add(delta))).join('')
      },
      end() {
        const usage = { input_tokens: tokens, output_tokens: 0, total_tokens: tokens }
        return event(encoder.end()) + frame({ type: 'speech.audio.done', usage })
      }
    }
  })
}

/** Returns the requested voice of a model; undefined for its usual one. @throws CorralError `invalid_request` */
function voiceOf({ publicName, metadata: { voices } }: Model, given: string | null | undefined): string | undefined {
  if (!given) return undefined
  if (!voices) return given
  const found = voices.find(name => name.toLowerCase() === given.toLowerCase())
  if (found !== undefined || OPENAI_VOICES.has(given)) return found
  const some = voices.slice(0, 20).join(', ')
  const more = voices.length > 20 ? `, and ${voices.length - 20} more (GET /v1/audio/voices)` : ''
  const message = `Model "${publicName}" has no voice ${JSON.stringify(given.slice(0, 100))}. It has ${some}${more}.`
  throw new CorralError('invalid_request', message, { param: 'voice' })
}
