import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import type { LogEvent } from '../../plugins/apis/native/log-routes.ts'
import { type CommandContext, modelArgument, usageFailure } from '../context.ts'
import { printable, printJson, printText, wrapLines } from '../output.ts'
import { withServer } from '../server-connection.ts'

interface LogsReply {
  model: string
  /** Newest first. */
  engines: EngineLogRecord[]
}

interface LogsOptions {
  follow?: boolean
  lines?: string
  raw?: boolean
  json?: boolean
}

export async function logs(context: CommandContext, model: string, options: LogsOptions): Promise<void> {
  const { follow, raw = false, json } = options
  const lines = options.lines === undefined ? undefined : Number(options.lines)
  if (lines !== undefined && (!Number.isSafeInteger(lines) || lines < 0)) {
    throw usageFailure(`--lines cannot be "${options.lines}". It must be a whole number, 0 or more.`)
  }
  // Few raw lines become an event, so all of them are requested and the last events are printed.
  const asked = raw || json ? lines : follow ? (lines ?? MAX_ENGINE_LINES) : undefined
  const query = asked === undefined ? '' : `lines=${asked}`
  const path = `/api/logs/${modelArgument(model)}`
  const print = (text: string) => printText(wrapLines(printable(text), undefined, 2))
  await withServer(
    context,
    'fail',
    async ({ client }) => {
      if (follow) {
        for await (const event of client.stream<LogEvent>(`${path}?follow=1&${query}`)) {
          const text = json ? undefined : eventText(event, raw)
          if (json) printText(printable(JSON.stringify(event)))
          else if (text !== undefined) print(text)
        }
        return
      }
      const reply = await client.json<LogsReply>('GET', `${path}?${query}`)
      if (json) printJson(reply)
      else print(raw ? formatRawLogs(reply) : formatLogs(reply, lines))
    },
    'Engine logs exist only while the server runs.'
  )
}

function header({ engine, build, startedAt }: Pick<EngineLogRecord, 'engine' | 'build' | 'startedAt'>): string {
  return `== engine ${engine}, started ${startedAt} on ${build} ==`
}

function ending({ endedAt, exit, failure }: Pick<EngineLogRecord, 'endedAt' | 'exit' | 'failure'>): string | undefined {
  if (endedAt === undefined) return undefined
  const how = exit ? (exit.signal ?? `exit code ${exit.code}`) : 'not started'
  const why = failure ? ` ${failure.code} (${failure.cause}): ${failure.message}` : ''
  return `== ended ${endedAt}, ${how} ==${why}`
}

/** Number of lines that the server keeps per engine. */
const MAX_ENGINE_LINES = 500

/** Describes the events of each engine, newest last. @param most maximum number of events per engine */
export function formatLogs({ model, engines }: LogsReply, most = Number.POSITIVE_INFINITY): string {
  if (engines.length === 0) return noEngine(model)
  return engines
    .toReversed()
    .map(record => {
      const { events, lines } = record
      // Engines of other plugins may have raw lines only.
      const texts = events ? events.map(({ text }) => text) : lines
      const shown = most === 0 ? [] : texts.slice(-most)
      return [plainHeader(record), ...shown.map(text => `  ${text}`), ...plainEnding(record)].join('\n')
    })
    .join('\n\n')
}

export function formatRawLogs({ model, engines }: LogsReply): string {
  if (engines.length === 0) return noEngine(model)
  return engines
    .toReversed()
    .map(record => {
      const dropped = record.dropped > 0 ? [`(${record.dropped} earlier lines)`] : []
      const end = ending(record)
      return [header(record), ...dropped, ...record.lines, ...(end === undefined ? [] : [end])].join('\n')
    })
    .join('\n\n')
}

function eventText(event: LogEvent, raw: boolean): string | undefined {
  if ('line' in event) return raw ? event.line : event.plain && `  ${event.plain}`
  if ('startedAt' in event) return raw ? header(event) : plainHeader(event)
  return raw ? ending(event) : plainEnding(event).join('\n')
}

const noEngine = (model: string) => `No engine has run ${model} since the server started.`

function plainHeader({ engine, build, startedAt }: Pick<EngineLogRecord, 'engine' | 'build' | 'startedAt'>): string {
  return `Engine ${engine}, started at ${clock(startedAt)} on ${build}`
}

function plainEnding({ endedAt, exit, failure }: Pick<EngineLogRecord, 'endedAt' | 'exit' | 'failure'>): string[] {
  if (endedAt === undefined) return []
  if (failure) return [`  failed at ${clock(endedAt)}: ${failure.message} (${failure.code}, ${failure.cause})`]
  if (!exit) return [`  failed to start (${clock(endedAt)})`]
  const fine = exit.code === 0 || exit.signal === 'SIGTERM'
  return [`  ended at ${clock(endedAt)}${fine ? '' : ` with ${exit.signal ?? `exit code ${exit.code}`}`}`]
}

/** Formats an ISO 8601 time in the local time zone, without fractions of a second. */
function clock(moment: string): string {
  const date = new Date(moment)
  return Number.isNaN(date.getTime()) ? moment : date.toLocaleString('sv')
}
