import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import {
  type FedRecord,
  STATE_TOPICS,
  StateChangeSchema,
  type StateEvent,
  type StateFeed,
  StateSnapshotSchema,
  type StateTopic
} from '../../../../core/contracts/state-events.ts'
import { sendUntilEnd } from '../../../../core/http/reply-stream.ts'
import { Titled } from '../../../../core/http/request-fields.ts'
import { nativeRouter } from '../../../../core/http/response-schemas.ts'
import type { NativeStreams } from '../sse-and-ndjson.ts'

/** Characters per write. Splitting a snapshot of thousands of models lets back-pressure apply within it. */
const MAX_CHARACTERS_PER_WRITE = 64 * 2 ** 10

const TOPICS = Object.keys(STATE_TOPICS)
const LastEventId = Type.Object({
  'last-event-id': Type.Optional(Type.String({ description: 'Id of the last event received' }))
})
const EventSchema = Titled('StateEvent', {
  event: Type.Enum(['snapshot', 'change']),
  id: Type.String(),
  data: Type.String({
    contentMediaType: 'application/json',
    contentSchema: Type.Union([StateSnapshotSchema, StateChangeSchema])
  })
})

const EVENTS = { description: 'The events', content: { 'text/event-stream': { schema: EventSchema } } }

export function eventRoutes(app: FastifyInstance, feed: StateFeed, streams: NativeStreams): void {
  const route = nativeRouter(app, 'Server')
  const clusterRoute = nativeRouter(app, 'Cluster')

  const follow = (
    { caller, headers }: FastifyRequest,
    reply: FastifyReply,
    topics: ReadonlySet<StateTopic> | undefined,
    heartbeatInterval = streams.heartbeatInterval
  ) => {
    const options = {
      contentType: 'text/event-stream',
      heartbeatInterval,
      heartbeat: (text: string) => `: ${text}\n\n`
    }
    return sendUntilEnd(reply, options, (stream, end) =>
      feed.follow({
        caller,
        ...(topics && { topics }),
        lastId: [headers['last-event-id']].flat()[0],
        take: event => writeAll(stream.write, framesOf(event)),
        end
      })
    )
  }

  // A HEAD request has no body, so nothing would end its stream.
  route('GET /events', 'followState', 'Follow the state of the server', {
    querystring: Type.Object({
      topics: Type.Optional(
        Type.String({
          pattern: `^(${TOPICS.join('|')})(,(${TOPICS.join('|')}))*$`,
          description: `Comma-separated list of ${TOPICS.join(', ')}; all by default`
        })
      ),
      heartbeat: Type.Optional(
        Type.String({ pattern: '^[1-9][0-9]?$', description: 'Seconds of silence after which a comment is sent' })
      )
    }),
    headers: LastEventId,
    response: EVENTS,
    errors: ['invalid_request'],
    exposeHeadRoute: false,
    handler: async (request, reply) => {
      const { topics, heartbeat } = request.query
      const wanted = topics === undefined ? undefined : new Set(topics.split(',') as StateTopic[])
      await follow(request, reply, wanted, heartbeat === undefined ? undefined : Number(heartbeat) * 1000)
    }
  })
  clusterRoute('GET /cluster/events', 'followCluster', 'Follow the nodes of this cluster', {
    role: 'operator',
    headers: LastEventId,
    response: EVENTS,
    exposeHeadRoute: false,
    handler: (request, reply) => follow(request, reply, new Set(['member', 'replicas']))
  })
}

/** Writes pieces one after the other, at the reader's pace. @returns a promise if the reader is slow */
function writeAll(
  write: (piece: string) => Promise<void> | undefined,
  pieces: Iterator<string>
): Promise<void> | undefined {
  for (let piece = pieces.next(); !piece.done; piece = pieces.next()) {
    const drained = write(piece.value)
    if (drained) return drained.then(() => writeAll(write, pieces))
  }
  return undefined
}

function* framesOf(event: StateEvent): Generator<string> {
  let piece = `event: ${event.kind}\nid: ${event.id}\ndata: `
  const keyOf = ({ topic, key }: FedRecord) => JSON.stringify({ topic, key })
  const lists: [name: string, records: readonly FedRecord[], json: (record: FedRecord) => string][] =
    event.kind === 'snapshot'
      ? [['records', event.records, ({ json }) => json]]
      : [
          ['removed', event.removed, keyOf],
          ['set', event.set, ({ json }) => json]
        ]
  for (const [at, [name, records, json]] of lists.entries()) {
    piece += `${at === 0 ? '{' : ','}"${name}":[`
    for (const [index, record] of records.entries()) {
      piece += (index === 0 ? '' : ',') + json(record)
      if (piece.length < MAX_CHARACTERS_PER_WRITE) continue
      yield piece
      piece = ''
    }
    piece += ']'
  }
  yield `${piece}}\n\n`
}
