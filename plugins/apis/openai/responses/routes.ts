import type { FastifyPluginAsync } from 'fastify'
import type { ApiDependencies } from '../../../../core/answers/model-request.ts'
import { CorralError } from '../../../../core/errors.ts'
import { openaiRoute } from '../../../../core/http/openai-error.ts'
import { ANSWER_ERRORS, json, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { countInputTokens, createResponse } from './create-response.ts'
import {
  Deleted,
  ItemList,
  ItemsQuery,
  Response,
  ResponseId,
  ResponseRequest,
  RetrieveQuery,
  TokenCount
} from './schemas.ts'
import { itemPage, StoredResponses } from './stored-responses.ts'

const TAG = 'OpenAI responses'
const STREAM =
  'Server-sent events in the order of OpenAI’s Responses API: response.created, response.in_progress, items with their parts and pieces, and response.completed, response.incomplete, or response.failed and error'

/**
 * OpenAI's Responses API, below `/v1`.
 * @param api.storedResponses maximum bytes of stored responses, for all keys together
 */
export function responseRoutes(api: ApiDependencies & { storedResponses: number }): FastifyPluginAsync {
  const stored = new StoredResponses(api.storedResponses, api.config.limits.stored_responses)
  const deps = { ...api, stored }
  return async app => {
    app.post<{ Body: ResponseRequest }>(
      '/responses',
      openaiRoute(TAG, 'createResponse', 'Create a response', {
        description:
          'Answers like OpenAI’s Responses API. Only functions that the client runs are supported as tools; other tools are ignored, as `tools` in the reply shows. A response is stored in memory for the API key that created it, until the memory is needed.',
        body: ResponseRequest,
        response: { 200: jsonOrStream('The response', Response, { event: STREAM }) },
        errors: [...ANSWER_ERRORS, 'response_not_found']
      }),
      (request, reply) => createResponse(deps, request, reply)
    )
    app.post<{ Body: ResponseRequest }>(
      '/responses/input_tokens',
      openaiRoute(TAG, 'countResponseInputTokens', 'Count the tokens of an input', {
        body: ResponseRequest,
        response: { 200: json('The number of tokens', TokenCount) },
        errors: [...ANSWER_ERRORS, 'response_not_found']
      }),
      (request, reply) => countInputTokens(deps, request, reply)
    )
    app.get<{ Params: ResponseId; Querystring: RetrieveQuery }>(
      '/responses/:id',
      openaiRoute(TAG, 'getResponse', 'Show a stored response', {
        params: ResponseId,
        querystring: RetrieveQuery,
        response: { 200: json('The response', Response) },
        errors: ['response_not_found', 'invalid_request', 'unsupported_capability']
      }),
      async ({ params, query, caller }) => {
        const { response } = stored.get(caller.owner, params.id)
        if (query.stream !== 'true') return response
        throw new CorralError(
          'unsupported_capability',
          'A stored response cannot be streamed. Remove "stream" to get it as a whole.',
          { param: 'stream' }
        )
      }
    )
    app.get<{ Params: ResponseId; Querystring: ItemsQuery }>(
      '/responses/:id/input_items',
      openaiRoute(TAG, 'listResponseInputItems', 'List the input of a stored response', {
        description: 'The whole conversation before the response, newest item first by default.',
        params: ResponseId,
        querystring: ItemsQuery,
        response: { 200: json('The items', ItemList) },
        errors: ['response_not_found', 'invalid_request']
      }),
      async ({ params, query, caller }) => itemPage(stored.get(caller.owner, params.id).input, query)
    )
    app.delete<{ Params: ResponseId }>(
      '/responses/:id',
      openaiRoute(TAG, 'deleteResponse', 'Delete a stored response', {
        params: ResponseId,
        response: { 200: json('The response is deleted', Deleted) },
        errors: ['response_not_found']
      }),
      async ({ params: { id }, caller }) => {
        stored.delete(caller.owner, id)
        return { id, object: 'response', deleted: true }
      }
    )
    app.post<{ Params: ResponseId }>(
      '/responses/:id/cancel',
      openaiRoute(TAG, 'cancelResponse', 'Cancel a response (not possible)', {
        description: 'Only responses in the background can be cancelled, which are not supported here.',
        params: ResponseId,
        errors: ['response_not_found', 'invalid_request']
      }),
      async ({ params, caller }) => {
        stored.get(caller.owner, params.id)
        throw new CorralError(
          'invalid_request',
          'This response has ended, and only background responses can be cancelled. To stop a running response, close its connection.'
        )
      }
    )
  }
}
