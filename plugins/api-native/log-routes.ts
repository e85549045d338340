import { setTimeout as sleep } from 'node:timers/promises'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { EngineLogRecord } from '../../core/contracts/engines.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import type { NativeDependencies } from './native-dependencies.ts'
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

/** The events of a followed log, each with the engine that it belongs to. */
export type LogEvent =
  | { engine: string; build: string; startedAt: string }
  | { engine: string; line: string }
  | { engine: string; endedAt: string; exit?: EngineLogRecord['exit']; failure?: EngineLogRecord['failure'] }

/**
 * Tells what is new in a model's records since the last call, oldest first. The first call gives the last `backlog`
 * lines of the newest engine; engines that come later are followed from their start.
 */
export function createLogEvents(backlog: number): (records: readonly EngineLogRecord[]) => LogEvent[] {
  /** By engine: how many of its lines have been told, and whether its end has. */
  const told = new Map<string, { lines: number; ended: boolean }>()
  let first = true
  return records => {
    const events: LogEvent[] = []
    const begins = first
    first = false
    for (const [age, { engine, build, startedAt, endedAt, exit, failure, dropped, lines }] of [
      ...records.entries()
    ].reverse()) {
      let known = told.get(engine)
      if (!known) {
        known = { lines: 0, ended: false }
        told.set(engine, known)
        if (begins && age > 0) {
          told.set(engine, { lines: Number.POSITIVE_INFINITY, ended: true })
          continue
        }
        if (begins) known.lines = dropped + Math.max(0, lines.length - backlog)
        events.push({ engine, build, startedAt })
      }
      if (known.lines !== Number.POSITIVE_INFINITY) {
        for (const line of lines.slice(Math.max(0, known.lines - dropped))) events.push({ engine, line })
        known.lines = Math.max(known.lines, dropped + lines.length)
      }
      if (endedAt !== undefined && !known.ended) {
        known.ended = true
        events.push({ engine, endedAt, ...(exit && { exit }), ...(failure && { failure }) })
      }
    }
    return events
  }
}
