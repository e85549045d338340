import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import type { ApiDependencies } from '../../../../core/answers/model-request.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiRoute } from '../../../../core/http/openai-error.ts'
import { Given, ListOf, Loose, named } from '../../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../../core/models/model-name.ts'
import { acceptForms } from './form-body.ts'
import { TranscriptionRequest, transcribe } from './transcribe.ts'

const TAG = 'OpenAI audio and images'
const FORM = 'multipart/form-data'

const Count = Type.Integer({ minimum: 0 })
const Transcript = Loose({
  text: Type.String(),
  logprobs: Type.Optional(ListOf({ token: Type.String(), logprob: Type.Number(), bytes: Type.Array(Count) })),
  usage: Loose({ type: Type.Literal('tokens'), input_tokens: Count, output_tokens: Count, total_tokens: Count })
})

const REPLY = jsonOrStream('The transcript; with the response_format "text" only its text', Transcript, {
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

/** Routes for features that no engine supports. */
const UNSUPPORTED = [
  ['/audio/speech', 'createSpeech', 'speak', SpeechRequest, ['application/json']],
  ['/images/generations', 'createImage', 'make images', ImageRequest, ['application/json']],
  ['/images/edits', 'createImageEdit', 'make images', ImageRequest, [FORM, 'application/json']],
  ['/images/variations', 'createImageVariation', 'make images', ImageRequest, [FORM, 'application/json']]
] as const

/** Routes for audio and images, below `/v1`. */
export function mediaRoutes(deps: ApiDependencies): FastifyPluginAsync {
  return async app => {
    acceptForms(app)
    for (const [path, task, summary, operationId] of TRANSCRIBING) {
      app.post<{ Body: TranscriptionRequest }>(
        path,
        openaiRoute(TAG, operationId, summary, {
          description: 'Needs a model with an audio projector, which is prompted for the task as in a chat.',
          consumes: [FORM, 'application/json'],
          body: TranscriptionRequest,
          response: { 200: { ...REPLY, content: { ...REPLY.content, 'text/plain': { schema: Type.String() } } } },
          errors: ANSWER_ERRORS
        }),
        (request, reply) => transcribe(deps, request, reply, task)
      )
    }
    for (const [path, operationId, what, body, consumes] of UNSUPPORTED) {
      const summary = `Reports that no model can ${what} here`
      app.post<{ Body: Static<typeof ImageRequest> }>(
        path,
        openaiRoute(TAG, operationId, summary, {
          consumes: [...consumes],
          body,
          bodySize: 'large',
          errors: ['invalid_model_name', 'model_not_found', 'unsupported_capability']
        }),
        async request => {
          const { publicName } = catalogFor(deps.catalog, request.caller).get(
            parseRequestedName(request.body.model ?? request.body.name)
          )
          throw new CorralError(
            'unsupported_capability',
            `Model "${publicName}" cannot ${what} because the engines here only generate text. Use another service.`,
            { param: 'model' }
          )
        }
      )
    }
  }
}
