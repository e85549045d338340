import { setTimeout as sleep } from 'node:timers/promises'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { clientSignal } from '../../core/http/client-signal.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import type { NativeDependencies } from './dependencies.ts'
import { createLogEvents } from './log-events.ts'
import { createNativeStreams } from './native-streams.ts'
import { logOperations } from './operations/engine-logs.ts'

/** Milliseconds between looks for new lines. */
const LOOK_INTERVAL = 300
/** Lines that a follower is given to begin with. */
const BACKLOG = 20

/** What the latest engines of a model printed, and how they ended. */
export function logRoutes(deps: NativeDependencies): FastifyPluginAsync {
  const { catalog, engines, negotiate, heartbeat } = deps
  const streams = createNativeStreams({ defaultFraming: 'sse', negotiate, heartbeat })
  const operations = logOperations(streams.types)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const closing = new AbortController()
    app.addHook('preClose', async () => closing.abort())

    app.get('/logs/*', { schema: operations.logs }, async (request, reply) => {
      const name = parseModelName(request.params['*'])
      const { follow } = request.query
      const lines = request.query.lines === undefined ? undefined : Number(request.query.lines)
      const variant = catalog.get(name)
      if (follow !== '1' && follow !== 'true') {
        const records = engines.logs(variant).map(record => {
          const kept = lines === undefined ? record.lines : record.lines.slice(Math.max(0, record.lines.length - lines))
          return { ...record, dropped: record.dropped + record.lines.length - kept.length, lines: kept }
        })
        return { model: variant.publicName, engines: records }
      }
      const gone = AbortSignal.any([clientSignal(reply), closing.signal])
      const framing = streams.framingOf(request)
      const stream = streams.open(request, reply, status => ({ status }))
      stream.status = 'following'
      const news = createLogEvents(lines ?? BACKLOG)
      // The stream ends when the model does.
      while (!gone.aborted && catalog.find(name)) {
        for (const event of news(engines.logs(variant))) await stream.write(streams.frame(framing, event))
        await sleep(LOOK_INTERVAL, undefined, { signal: gone }).catch(() => {
          // The loop looks at the signal.
        })
      }
      stream.end()
      return reply
    })
  }
}
