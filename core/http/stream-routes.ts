import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { CorralError } from '../errors.ts'
import { Loose } from './request-fields.ts'
import { json, type routesWith } from './response-schemas.ts'
import type { StreamPosition } from './resumable-streams.ts'

const StreamPath = Type.Object({ id: Type.String({ description: 'As the header X-Corral-Stream-Id gave it' }) })
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
 * The routes of streams that survive their connection, for the surfaces whose requests can ask for one.
 * @param route how the surface describes its routes, and words their errors
 * @param tag its group in the API document
 * @param name ends the ids of the routes there
 */
export function streamRoutes(route: ReturnType<typeof routesWith>, tag: string, name: string): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.get(
      '/streams/:id',
      route(tag, `resume${name}`, 'Continue a stream whose connection was lost', {
        description:
          'For answers that were requested with the header `X-Corral-Resumable: true`: they go on for `limits.resume` after their connection was lost, and are kept as long after their end. What comes is byte for byte what would have come, from the event behind `after` (or the header `Last-Event-ID`) on, or from a byte on. A connection that still had the stream is closed.',
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
      route(tag, `cancel${name}`, 'End an answer that can be continued', {
        params: StreamPath,
        response: { 200: json('It was ended, and what was kept of it is gone', CancelledSchema) },
        errors: ['stream_not_found']
      }),
      async request => {
        app.resumable.get(request, request.params.id).cancel()
        return { status: 'cancelled' as const }
      }
    )
  }
}

/** @throws CorralError `invalid_request` for a `Last-Event-ID` that is no number of an event */
function positionOf(
  { after, from }: { after?: string; from?: string },
  lastEventId: string | undefined
): StreamPosition {
  if (after === undefined && from !== undefined) return { from: Number(from) }
  const last = after ?? lastEventId ?? '0'
  if (/^[0-9]{1,15}$/.test(last)) return { after: Number(last) }
  throw new CorralError('invalid_request', 'Last-Event-ID must be the number of an event of this stream.')
}
