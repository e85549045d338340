import { Type } from 'typebox'
import { Nanoseconds } from '../../../core/contracts/native-records.ts'
import { ANSWER_ERRORS, errorResponses, json, nativeErrors } from '../../../core/http/response-schemas.ts'
import { EmbeddingsRequestSchema, EmbedRequestSchema } from '../schemas.ts'

const loose = { additionalProperties: true }
const Embedding = Type.Array(Type.Number(), { description: 'Of length 1; empty where there was no text' })
const only = 'Without a text the model is only loaded, or unloaded where `keep_alive` is 0.'

/** How embeddings are described. */
export const embedOperations = {
  embed: {
    summary: 'Embed texts',
    description: `Loads the model for embeddings where needed. ${only}`,
    tags: ['Answers'],
    operationId: 'embed',
    body: EmbedRequestSchema,
    response: {
      200: json(
        'An embedding for each text',
        Type.Object(
          {
            model: Type.String({ description: 'As it was asked for' }),
            embeddings: Type.Array(Embedding),
            total_duration: Nanoseconds('From the request to the reply'),
            load_duration: Nanoseconds('That the request waited for the model to load'),
            prompt_eval_count: Type.Integer({ description: 'Tokens of all texts' })
          },
          { ...loose, title: 'EmbedReply' }
        )
      ),
      ...errorResponses(nativeErrors, ANSWER_ERRORS)
    }
  },
  embeddings: {
    summary: 'Embed one text',
    description: `An older form of embed. ${only}`,
    tags: ['Answers'],
    operationId: 'embeddings',
    body: EmbeddingsRequestSchema,
    response: {
      200: json('The embedding', Type.Object({ embedding: Embedding }, { ...loose, title: 'EmbeddingsReply' })),
      ...errorResponses(nativeErrors, ANSWER_ERRORS)
    }
  }
}
