import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { CorralError } from '../../../core/errors.ts'
import { ANSWER_ERRORS, errorResponses, jsonOrStream } from '../../../core/http/response-schemas.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import type { OpenaiDependencies } from '../answer.ts'
import { schemaCompiler } from '../check-body.ts'
import { openaiErrors } from '../openai-error.ts'
import { acceptForms } from './form-body.ts'
import { ImageRequest, type ModelRequest, SpeechRequest, TranscriptionRequest } from './request-schemas.ts'
import { transcribe } from './transcribe.ts'

const FORM = 'multipart/form-data'
const loose = { additionalProperties: true }

const Count = Type.Integer({ minimum: 0 })
const TranscriptReply = Type.Object(
  {
    text: Type.String(),
    logprobs: Type.Optional(
      Type.Array(Type.Object({ token: Type.String(), logprob: Type.Number(), bytes: Type.Array(Count) }, loose))
    ),
    usage: Type.Object(
      { type: Type.Literal('tokens'), input_tokens: Count, output_tokens: Count, total_tokens: Count },
      loose
    )
  },
  loose
)

const HEARD = jsonOrStream('What is said; with the response_format "text" only that', TranscriptReply, {
  event:
    'Events `data: {"type":"transcript.text.delta","delta":…}`, one `data: {"type":"transcript.text.done","text":…,"usage":…}`, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.'
})

const HEARING = [
  ['/audio/transcriptions', 'transcribe', 'Write down what is said', 'createTranscription'],
  ['/audio/translations', 'translate', 'Write down in English what is said', 'createTranslation']
] as const

/** What no engine here does, and the routes that would ask for it. */
const UNSUPPORTED = [
  ['/audio/speech', 'createSpeech', 'speak', SpeechRequest, ['application/json']],
  ['/images/generations', 'createImage', 'make images', ImageRequest, ['application/json']],
  ['/images/edits', 'createImageEdit', 'make images', ImageRequest, [FORM, 'application/json']],
  ['/images/variations', 'createImageVariation', 'make images', ImageRequest, [FORM, 'application/json']]
] as const

/** What is asked about sounds and images, below `/v1`. */
export function mediaRoutes(deps: OpenaiDependencies): FastifyPluginAsync {
  return async app => {
    app.setValidatorCompiler(schemaCompiler)
    acceptForms(app)
    for (const [path, task, summary, operationId] of HEARING) {
      app.post<{ Body: TranscriptionRequest }>(
        path,
        {
          schema: {
            tags: ['OpenAI sounds and images'],
            summary,
            description: 'Needs a model with a projector for sounds, which is asked to do it as in a chat.',
            operationId,
            consumes: [FORM, 'application/json'],
            body: TranscriptionRequest,
            response: {
              200: { ...HEARD, content: { ...HEARD.content, 'text/plain': { schema: Type.String() } } },
              ...errorResponses(openaiErrors, ANSWER_ERRORS)
            }
          }
        },
        (request, reply) => transcribe(deps, request, reply, task)
      )
    }
    for (const [path, operationId, what, body, consumes] of UNSUPPORTED) {
      app.post<{ Body: ModelRequest }>(
        path,
        {
          schema: {
            tags: ['OpenAI sounds and images'],
            summary: `Says that no model can ${what} here`,
            operationId,
            consumes: [...consumes],
            body,
            response: errorResponses(openaiErrors, ['invalid_model_name', 'model_not_found', 'unsupported_capability'])
          }
        },
        async request => {
          const { publicName } = deps.catalog.get(parseModelName(request.body.model ?? request.body.name))
          throw new CorralError(
            'unsupported_capability',
            `Model "${publicName}" cannot ${what}: the engines here only write text. Use another service for it.`,
            { param: 'model' }
          )
        }
      )
    }
  }
}
