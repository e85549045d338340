import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import type { RunningRecord } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { LogEvent } from '../../plugins/apis/native/log-routes.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options } from '../context.ts'
import type { PsReply } from '../live-view.ts'
import {
  formatTable,
  printable,
  printJson,
  printNote,
  printResult,
  printText,
  relativeTime,
  wrapLines
} from '../output.ts'
import { formatHits, formatPool } from '../progress-display.ts'
import { ask, withServer } from '../server-connection.ts'

const NOTHING_LOADED = { whenNone: 'fail', without: 'No models are loaded.' } as const

export async function ps(context: CommandContext, { json = false, watch }: Options<'json' | 'watch'>) {
  if (watch) return await (await import('../live-view.ts')).showLive(context, json, false)
  let reply: PsReply = { models: [], loading: [] }
  try {
    reply = await ask<PsReply>(context, 'GET', '/api/ps', undefined, NOTHING_LOADED)
  } catch (error) {
    if (json && error instanceof CommandFailure && error.exitCode === EXIT.noServer) printJson(reply)
    throw error
  }
  printResult(json, reply, formatRunning)
}

export async function top(context: CommandContext, { json = false }: Options): Promise<void> {
  await (await import('../live-view.ts')).showLive(context, json, true)
}

export function formatRunning({ models, loading, memory = [] }: PsReply, now = new Date()): string {
  const hasMembers = [...models, ...loading].some(({ member }) => member !== undefined)
  const isMeasured = models.some(({ speculation }) => speculation)
  const titles = ['NAME', 'MEMBER', 'ID', '>MEMORY', 'PROCESSOR', '>CONTEXT', '>CACHE HITS', 'SPEED', 'UNTIL']
  const isShown = (_: string, column: number) =>
    (hasMembers || titles[column] !== 'MEMBER') && (isMeasured || titles[column] !== 'SPEED')
  const loaded = models.map(model => [
    model.name,
    model.member ?? 'here',
    model.digest.slice(0, 12),
    model.size > 0 ? formatBytes(model.size) : '-',
    model.remote_model === undefined ? formatProcessor(model.size, model.size_vram) : 'remote',
    String(model.context_length),
    formatHits(model.prompt_cache),
    formatSpeed(model.speculation),
    relativeTime(model.expires_at, now)
  ])
  const others = loading.map(({ name, member = 'here', state, status }) => [
    ...[name, member, '', '', '', '', '', ''],
    status ?? state
  ])
  const table = formatTable(
    titles.filter(isShown),
    [...loaded, ...others].map(row => row.filter(isShown))
  )
  return [table, ...memory.map(formatPool)].join('\n')
}

/** Tokens per second with the method that guesses tokens ahead, and without: `38 tokens/s (mtp), 21 without`. */
function formatSpeed(speculation: RunningRecord['speculation']): string {
  if (!speculation) return ''
  const { method, tokens_per_second: rates } = speculation
  const rate = (of: string) => (rates[of] === undefined ? '?' : Math.round(rates[of]))
  return `${rate(method)} tokens/s${method === 'none' ? '' : ` (${method}), ${rate('none')} without`}`
}

/** Share of a model's memory on each device: `100% GPU`, `100% CPU` or `48%/52% CPU/GPU`. */
export function formatProcessor(size: number, vram: number): string {
  if (vram <= 0 || size <= 0) return '100% CPU'
  if (vram >= size) return '100% GPU'
  const cpu = Math.min(99, Math.max(1, Math.round((1 - vram / size) * 100)))
  return `${cpu}%/${100 - cpu}% CPU/GPU`
}

export async function stop(context: CommandContext, model: string): Promise<void> {
  await ask(context, 'POST', '/api/stop', { model: modelArgument(model) }, NOTHING_LOADED)
  printNote(`stopped ${model}`)
}

interface LogsReply {
  model: string
  /** Newest first. */
  engines: EngineLogRecord[]
}

type LogsOptions = Options<'follow' | 'raw' | 'json'> & { lines?: number }

export async function logs(context: CommandContext, model: string, options: LogsOptions): Promise<void> {
  const { follow, raw = false, json, lines } = options
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
      else print(formatLogs(reply, raw, lines))
    },
    'Engine logs exist only while the server runs.'
  )
}

/** Number of lines that the server keeps per engine. */
const MAX_ENGINE_LINES = 500

/**
 * Describes the events of each engine, newest last, or shows its raw lines.
 * @param most maximum number of events per engine
 */
export function formatLogs({ model, engines }: LogsReply, raw: boolean, most = Number.POSITIVE_INFINITY): string {
  if (engines.length === 0) return `No engine has run ${model} since the server started.`
  const texts = engines.toReversed().map(record => {
    const { events, lines, dropped } = record
    const earlier = raw && dropped > 0 ? [`(${dropped} earlier lines)`] : []
    // Engines of other plugins may have raw lines only.
    const shown = (events?.map(({ text }) => text) ?? lines).slice(-most).map(text => `  ${text}`)
    const body = raw ? lines : most === 0 ? [] : shown
    return [beginning(record, raw), ...earlier, ...body, ...ending(record, raw)].join('\n')
  })
  return texts.join('\n\n')
}

function eventText(event: LogEvent, raw: boolean): string | undefined {
  if ('line' in event) return raw ? event.line : event.plain && `  ${event.plain}`
  return 'startedAt' in event ? beginning(event, raw) : ending(event, raw).join('\n')
}

type EngineStart = Pick<EngineLogRecord, 'engine' | 'build' | 'startedAt'>
type EngineEnd = Pick<EngineLogRecord, 'endedAt' | 'exit' | 'failure'>

const beginning = ({ engine, build, startedAt }: EngineStart, raw: boolean) =>
  raw
    ? `== engine ${engine}, started ${startedAt} on ${build} ==`
    : `Engine ${engine}, started at ${clock(startedAt)} on ${build}`

function ending({ endedAt, exit, failure }: EngineEnd, raw: boolean): string[] {
  if (endedAt === undefined) return []
  if (raw) {
    const how = exit ? (exit.signal ?? `exit code ${exit.code}`) : 'not started'
    const why = failure ? ` ${failure.code} (${failure.cause}): ${failure.message}` : ''
    return [`== ended ${endedAt}, ${how} ==${why}`]
  }
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
