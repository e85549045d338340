import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { CorralError } from '../../../core/errors.ts'
import { json } from '../../../core/http/response-schemas.ts'
import { llamaRoute } from './llama-error.ts'
import * as schemas from './schemas.ts'

/** Routes for resumable streams, which clients name by conversation. */
export function resumeRoutes(app: FastifyInstance): void {
  app.get<{ Querystring: Static<typeof schemas.ConversationQuery> }>(
    '/v1/stream',
    llamaRoute('llamaStream', 'Continue the stream of a conversation', {
      description:
        'The request that started the answer must have had the header `X-Conversation-Id`. The stream continues from the given byte. For streams with an id of corral, use `GET /v1/streams/{id}`.',
      querystring: schemas.ConversationQuery,
      response: {
        200: { description: 'The rest of the stream', content: { 'text/event-stream': { schema: Type.String() } } }
      },
      errors: ['stream_not_found', 'invalid_request']
    }),
    (request, reply) => {
      const { conv_id, from = '0' } = request.query
      const stream = app.resumable.ofConversation(request, conv_id)
      if (!stream)
        throw new CorralError('stream_not_found', 'The stream was not found or has expired. Send the request again.')
      stream.resume(reply, { from: Number(from) })
    }
  )
  app.delete<{ Querystring: Static<typeof schemas.ConversationQuery> }>(
    '/v1/stream',
    llamaRoute('llamaEndStream', 'End the answer to a conversation', {
      description: 'Succeeds even if there is no such answer.',
      querystring: schemas.ConversationQuery,
      response: { 204: { description: 'The answer has ended', content: {} } },
      errors: ['invalid_request']
    }),
    async (request, reply) => {
      app.resumable.ofConversation(request, request.query.conv_id)?.cancel()
      return await reply.code(204).send()
    }
  )
  app.post<{ Body: Static<typeof schemas.LookupRequest> }>(
    '/v1/streams/lookup',
    llamaRoute('llamaLookUpStreams', 'Find the streams of conversations', {
      body: schemas.LookupRequest,
      audited: false,
      response: { 200: json('The streams that were found', Type.Array(schemas.StreamRecord)) }
    }),
    async request =>
      app.resumable.ofConversations(request, request.body.conversation_ids).map(stream => ({
        conversation_id: stream.conversation!,
        is_done: stream.ended,
        total_bytes: stream.length,
        started_at: seconds(stream.startedAt),
        completed_at: stream.endedAt ? seconds(stream.endedAt) : 0
      }))
  )
}

const seconds = (date: Date) => Math.floor(date.getTime() / 1000)
