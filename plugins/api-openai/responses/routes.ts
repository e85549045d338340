import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { CorralError } from '../../../core/errors.ts'
import { ANSWER_ERRORS, errorResponses, json, jsonOrStream } from '../../../core/http/response-schemas.ts'
import { schemaCompiler } from '../check-body.ts'
import { openaiErrors } from '../openai-error.ts'
import { countInputTokens, createResponse, type ResponseDependencies } from './create-response.ts'
import { CountSchema, DeletedSchema, ItemListSchema, ResponseSchema } from './reply-schemas.ts'
import { type ResponseRequest, ResponseRequestSchema } from './request-schema.ts'
import { pageOf, StoredResponses } from './stored-responses.ts'

const tags = ['OpenAI responses']
const loose = { additionalProperties: true }
const ById = Type.Object({ id: Type.String({ description: 'resp_…' }) })
type ById = Static<typeof ById>

const RetrieveQuery = Type.Object(
  { stream: Type.Optional(Type.String({ description: 'Only false: what has ended is not streamed anew' })) },
  loose
)
const ItemsQuery = Type.Object(
  {
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 100, default: 20 })),
    order: Type.Optional(Type.Enum(['asc', 'desc'], { default: 'desc' })),
    after: Type.Optional(Type.String({ description: 'Id of the item that the page before ended with' }))
  },
  loose
)
type ItemsQuery = Static<typeof ItemsQuery>

const STREAM =
  'Server-sent events in the order of OpenAI’s Responses API: response.created, response.in_progress, items with their parts and pieces, and response.completed, response.incomplete, or response.failed and error'

/**
 * OpenAI's Responses API, below `/v1`.
 * @param given.storedResponses bytes of responses that are kept for `previous_response_id`
 */
export function responseRoutes(
  given: Omit<ResponseDependencies, 'stored'> & { storedResponses: number }
): FastifyPluginAsync {
  const stored = new StoredResponses(given.storedResponses)
  const deps: ResponseDependencies = { ...given, stored }
  return async app => {
    app.setValidatorCompiler(schemaCompiler)
    app.post<{ Body: ResponseRequest }>(
      '/responses',
      {
        schema: {
          tags,
          summary: 'Answer',
          description:
            'Answers as OpenAI’s Responses API does. The only tools are functions that the client runs; others beside them are left out, as the reply’s `tools` shows. A stored response is kept in memory until there is no room for it.',
          operationId: 'createResponse',
          body: ResponseRequestSchema,
          response: {
            200: jsonOrStream('The response', ResponseSchema, { event: STREAM }),
            ...errorResponses(openaiErrors, [...ANSWER_ERRORS, 'response_not_found'])
          }
        }
      },
      (request, reply) => createResponse(deps, request, reply)
    )
    app.post<{ Body: ResponseRequest }>(
      '/responses/input_tokens',
      {
        schema: {
          tags,
          summary: 'Count the tokens of an input',
          operationId: 'countResponseInputTokens',
          body: ResponseRequestSchema,
          response: {
            200: json('The number', CountSchema),
            ...errorResponses(openaiErrors, [...ANSWER_ERRORS, 'response_not_found'])
          }
        }
      },
      (request, reply) => countInputTokens(deps, request, reply)
    )
    app.get<{ Params: ById; Querystring: { stream?: string } }>(
      '/responses/:id',
      {
        schema: {
          tags,
          summary: 'Show a stored response',
          operationId: 'getResponse',
          params: ById,
          querystring: RetrieveQuery,
          response: {
            200: json('The response', ResponseSchema),
            ...errorResponses(openaiErrors, ['response_not_found', 'invalid_request', 'unsupported_capability'], {
              body: false
            })
          }
        }
      },
      async ({ params, query }) => {
        const { response } = stored.get(params.id)
        if (query.stream !== 'true') return response
        throw new CorralError(
          'unsupported_capability',
          'A stored response is not streamed anew. Leave "stream" out to get it as a whole.',
          { param: 'stream' }
        )
      }
    )
    app.get<{ Params: ById; Querystring: ItemsQuery }>(
      '/responses/:id/input_items',
      {
        schema: {
          tags,
          summary: 'List what a stored response answers',
          description: 'All of the conversation before the response, the latest first by default.',
          operationId: 'listResponseInputItems',
          params: ById,
          querystring: ItemsQuery,
          response: {
            200: json('The items', ItemListSchema),
            ...errorResponses(openaiErrors, ['response_not_found', 'invalid_request'], { body: false })
          }
        }
      },
      async ({ params, query }) => pageOf(stored.get(params.id).input, query)
    )
    app.delete<{ Params: ById }>(
      '/responses/:id',
      {
        schema: {
          tags,
          summary: 'Forget a stored response',
          operationId: 'deleteResponse',
          params: ById,
          response: {
            200: json('It is gone', DeletedSchema),
            ...errorResponses(openaiErrors, ['response_not_found'])
          }
        }
      },
      async ({ params: { id } }) => {
        stored.delete(id)
        return { id, object: 'response', deleted: true }
      }
    )
    app.post<{ Params: ById }>(
      '/responses/:id/cancel',
      {
        schema: {
          tags,
          summary: 'Cancel a response (it cannot be)',
          description: 'Only responses made in the background can be cancelled, and none are here.',
          operationId: 'cancelResponse',
          params: ById,
          response: errorResponses(openaiErrors, ['response_not_found'])
        }
      },
      async ({ params }) => {
        stored.get(params.id)
        throw new CorralError(
          'invalid_request',
          'This response has ended, and only those made in the background could be cancelled. To end one that is being made, close its connection.'
        )
      }
    )
  }
}
