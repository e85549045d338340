import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { CorralError } from '../errors.ts'
import { Loose } from './request-fields.ts'
import { json, type routesWith } from './response-schemas.ts'
import type { StreamPosition } from './resumable-streams.ts'

const StreamPath = Type.Object({ id: Type.String({ description: 'From the header X-Corral-Stream-Id' }) })
const Position = Type.Object({
  after: Type.Optional(
    Type.String({ pattern: '^[0-9]{1,15}$', description: 'Number of the last event that was received; 0 is none' })
  ),
  from: Type.Optional(
    Type.String({ pattern: '^[0-9]{1,15}$', description: 'Instead: bytes of the body that were received' })
  )
})
const CancelledSchema = Loose({ status: Type.Literal('cancelled') })

/**
 * The routes of resumable streams, for APIs whose requests can ask for them.
 * @param route creates the API's route options with its error format
 * @param tag its group in the API document
 * @param name suffix of the routes' ids
 */
export function streamRoutes(route: ReturnType<typeof routesWith>, tag: string, name: string): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.get(
      '/streams/:id',
      route(tag, `resume${name}`, 'Continue a stream whose connection was lost', {
        description:
          'For answers that were requested with the header `X-Corral-Resumable: true`: they continue for `limits.resume` after their connection was lost, and are stored for as long after their end. The reply is byte for byte what the original connection would have received, from the event after `after` (or the header `Last-Event-ID`) on, or from a byte on. If another connection still reads the stream, it is closed.',
        params: StreamPath,
        querystring: Position,
        response: {
          200: {
            description: 'The rest of the stream',
            content: {
              'text/event-stream': { schema: Type.String() },
              'application/x-ndjson': { schema: Type.String() }
            }
          }
        },
        errors: ['stream_not_found', 'invalid_request']
      }),
      (request, reply) => {
        const stream = app.resumable.get(request, request.params.id)
        stream.resume(reply, positionOf(request.query, [request.headers['last-event-id']].flat()[0]))
      }
    )
    app.delete(
      '/streams/:id',
      route(tag, `cancel${name}`, 'End a resumable answer', {
        params: StreamPath,
        response: { 200: json('It was ended, and its stored part was removed', CancelledSchema) },
        errors: ['stream_not_found']
      }),
      async request => {
        app.resumable.get(request, request.params.id).cancel()
        return { status: 'cancelled' as const }
      }
    )
  }
}

/** @throws CorralError `invalid_request` for a `Last-Event-ID` that is not the number of an event */
function positionOf(
  { after, from }: { after?: string; from?: string },
  lastEventId: string | undefined
): StreamPosition {
  if (after === undefined && from !== undefined) return { from: Number(from) }
  const last = after ?? lastEventId ?? '0'
  if (/^[0-9]{1,15}$/.test(last)) return { after: Number(last) }
  throw new CorralError('invalid_request', 'Last-Event-ID must be the number of an event of this stream.')
}
