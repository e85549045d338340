import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import { LOG_LEVELS } from '../../../core/config/core-schema.ts'
import { type EngineLogRecord, EngineLogSchema } from '../../../core/contracts/engine-log.ts'
import { type ServerLogLine, ServerLogLineSchema, Time } from '../../../core/contracts/native-records.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose, Titled } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import type { LogLevels } from '../../../core/system/log-levels.ts'
import type { NativeDependencies } from './native-dependencies.ts'

const POLL_INTERVAL_MS = 300
const BACKLOG_LINES = 20

const { engine, build, startedAt, exit, failure } = EngineLogSchema.properties
const LogEventSchema = Type.Union([
  Titled('LogLine', { engine, line: Type.String(), plain: Type.Optional(Type.String()) }),
  Loose({ engine, build, startedAt }),
  Loose({ engine, endedAt: Time(), exit, failure })
])
export type LogEvent = Static<typeof LogEventSchema>

const Level = Type.Enum([...LOG_LEVELS])
const follow = Type.Optional(
  Type.Enum(['1', 'true', '0', 'false'], { description: 'Stream new lines until the client disconnects' })
)
const isFollowed = (given: string | undefined) => given === '1' || given === 'true'
const LevelsSchema = Titled('LogLevels', { default: Level, parts: Type.Record(Type.String(), Level) })

export function logRoutes(app: FastifyInstance, { catalog, engines, streams }: NativeDependencies, levels: LogLevels) {
  const route = nativeRouter(app, 'Server')
  const closing = new AbortController()
  app.addHook('preClose', async () => closing.abort())

  /** Streams new events until the client disconnects, or `news` returns undefined. */
  async function stream(reply: FastifyReply, news: () => object[] | undefined): Promise<void> {
    const ended = AbortSignal.any([clientSignal(reply), closing.signal])
    await streams.reply(reply, async stream => {
      stream.status = 'following'
      for (let events = news(); events && !ended.aborted; events = news()) {
        for (const event of events) await stream.send(event)
        await sleep(POLL_INTERVAL_MS, undefined, { signal: ended }).catch(() => {
          // The loop checks the signal.
        })
      }
    })
  }

  route('GET /logs/*', 'getLogs', "Show the logs of a model's latest engines", {
    role: 'admin',
    // Model names contain a slash, which clients send literally or as %2F.
    params: Type.Object({
      '*': Type.String({ title: 'model', description: '<owner>/<name> or <owner>/<name>:<variant>' })
    }),
    querystring: Type.Object({
      lines: Type.Optional(Type.String({ pattern: '^\\d{1,6}$', description: 'Number of last lines of each engine' })),
      follow
    }),
    response: streams.eventsReply(
      'Their output, and how they ended',
      Loose({ model: Type.String(), engines: Type.Array(EngineLogSchema) }),
      'Lines, starts and exits of engines',
      Type.Union([...LogEventSchema.anyOf, Loose({ status: Type.String() })])
    ),
    errors: ['invalid_request', 'invalid_model_name', 'model_not_found'],
    handler: async ({ params, query: { follow, lines: last } }, reply) => {
      const lines = last === undefined ? undefined : Number(last)
      const variant = catalog.get(parseRequestedName(params['*']))
      if (!isFollowed(follow)) {
        const records = engines.logs(variant).map(record => {
          const kept = lines === undefined ? record.lines : record.lines.slice(Math.max(0, record.lines.length - lines))
          return { ...record, dropped: record.dropped + record.lines.length - kept.length, lines: kept }
        })
        return { model: variant.publicName, engines: records }
      }
      const news = createLogEvents(lines ?? BACKLOG_LINES)
      // The stream ends when the model is deleted.
      return await stream(reply, () => (catalog.find(variant.model) ? news(engines.logs(variant)) : undefined))
    }
  })

  route('GET /logs', 'getServerLog', "Show the last lines of the server's own log", {
    role: 'admin',
    querystring: Type.Object({
      level: Type.Optional(Type.Enum([...LOG_LEVELS], { description: 'The lowest level to show' })),
      follow
    }),
    response: streams.eventsReply(
      'Its last lines',
      Loose({ lines: Type.Array(ServerLogLineSchema, { description: 'Oldest first' }) }),
      'Lines',
      Type.Union([ServerLogLineSchema, Loose({ status: Type.String() })])
    ),
    errors: ['invalid_request'],
    handler: async ({ query: { level = 'trace', follow } }, reply) => {
      let seen = 0
      const isShown = (line: ServerLogLine) => LOG_LEVELS.indexOf(line.level) >= LOG_LEVELS.indexOf(level)
      const news = () => {
        const lines = levels.recent.after(seen)
        seen = levels.recent.count
        return lines.map(serverLogLine).filter(isShown)
      }
      return isFollowed(follow) ? await stream(reply, news) : { lines: news() }
    }
  })

  route('GET /log-levels', 'getLogLevels', 'Show the log levels', {
    role: 'admin',
    response: json('The levels', LevelsSchema),
    handler: async () => levels.report()
  })

  route('PUT /log-levels', 'setLogLevel', 'Change a log level', {
    role: 'admin',
    body: Loose({
      part: Type.Optional(Type.Union([Type.String(), Type.Null()])),
      level: Type.Optional(Type.Union([Type.String(), Type.Null()], { description: LOG_LEVELS.join(', ') }))
    }),
    response: json('The new levels', LevelsSchema),
    errors: ['invalid_option'],
    handler: async ({ body }) => {
      levels.set(body.part ?? undefined, body.level ?? undefined)
      return levels.report()
    }
  })
}

/** Keys, sessions, tokens and passwords in addresses. They are never logged on purpose, but a library's error could quote one. */
const SECRETS =
  /\b(corral_(?:session_)?[0-9a-f]{16}_|hf_|sk-)[\w-]{16,}|\b(Bearer +)[^\s"'\\]+|(:\/\/[^\s/:@]+:)[^\s/@]+(?=@)/gi

/** Parses a line of the log. A line that was too long to be kept whole is shown as it is. */
export function serverLogLine(line: string): ServerLogLine {
  const text = line.replace(SECRETS, '$1$2$3…')
  const parsed = parseAnyJson(text)
  const { level, time, part, msg, ...details } = isObject(parsed) ? parsed : { level: /"level":(\d+)/.exec(text)?.[1] }
  const at = new Date(Number(time ?? /"time":(\d+)/.exec(text)?.[1]))
  return {
    ...(!Number.isNaN(at.getTime()) && { time: at.toISOString() }),
    level: LOG_LEVELS[Math.min(5, Math.max(0, Number(level ?? 30) / 10 - 1))] ?? 'info',
    ...(typeof part === 'string' && { part }),
    message: isObject(parsed) ? String(msg ?? '') : text,
    ...(Object.keys(details).length > 0 && { details })
  }
}

/**
 * Returns a function that turns new log lines into events, oldest first. Its first call starts with the last `backlog`
 * lines of the newest engine.
 */
export function createLogEvents(backlog: number): (records: readonly EngineLogRecord[]) => LogEvent[] {
  /** For each engine: the number of lines that were sent, and whether its end was sent. */
  const sent = new Map<string, { lines: number; ended: boolean }>()
  let first = true
  return records => {
    const events: LogEvent[] = []
    if (first) for (const { engine } of records.slice(1)) sent.set(engine, { lines: Infinity, ended: true })
    for (const record of [...records].reverse()) {
      const { engine, build, startedAt, endedAt, exit, failure, dropped, lines } = record
      let known = sent.get(engine)
      if (!known) {
        known = { lines: first ? dropped + Math.max(0, lines.length - backlog) : 0, ended: false }
        sent.set(engine, known)
        events.push({ engine, build, startedAt })
      }
      const from = Math.max(0, known.lines - dropped)
      const plain = new Map(record.events?.map(({ line, text }) => [line, text]))
      for (const [index, line] of lines.slice(from).entries()) {
        const text = plain.get(dropped + from + index)
        events.push({ engine, line, ...(text !== undefined && { plain: text }) })
      }
      known.lines = Math.max(known.lines, dropped + lines.length)
      if (endedAt !== undefined && !known.ended) {
        known.ended = true
        events.push({ engine, endedAt, ...(exit && { exit }), ...(failure && { failure }) })
      }
    }
    first = false
    return events
  }
}
