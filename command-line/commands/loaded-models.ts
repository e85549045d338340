import { InvalidArgumentError } from 'commander'
import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { LogEvent } from '../../plugins/apis/native/log-routes.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import type { PsReply } from '../live-view.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime, wrapLines } from '../output.ts'
import { ask, withServer } from '../server-connection.ts'

const NOTHING_LOADED = { whenNone: 'fail', without: 'No models are loaded.' } as const

export function definePs(program: CorralCommand, context: CommandContext): void {
  program
    .command('ps')
    .description('list the loaded models')
    .option('--json', 'print the records of GET /api/ps')
    .option(
      '-w, --watch',
      'refresh every second until Ctrl-C; with --json or in a pipe, print one JSON line per change'
    )
    .notes(`
MEMBER is the cluster node that has loaded the model.
UNTIL is when an idle model is unloaded, or the progress of a model that is not ready yet.

Examples:
  corral ps
  corral ps --watch
  corral top`)
    .action(async ({ json, watch }: { json?: boolean; watch?: boolean }) => {
      if (watch) {
        const { showLive } = await import('../live-view.ts')
        return await showLive(context, { json: json === true, fullScreen: false })
      }
      let reply: PsReply = { models: [], loading: [] }
      try {
        reply = await ask<PsReply>(context, 'GET', '/api/ps', undefined, NOTHING_LOADED)
      } catch (error) {
        if (json && error instanceof CommandFailure && error.exitCode === EXIT.noServer) printJson(reply)
        throw error
      }
      if (json) printJson(reply)
      else printText(formatRunning(reply, new Date()))
    })
}

export function formatRunning({ models, loading }: PsReply, now: Date): string {
  const hasMembers = [...models, ...loading].some(({ member }) => member !== undefined)
  const memberCell = ({ member = 'here' }: { member?: string | undefined }) => (hasMembers ? [member] : [])
  return formatTable(
    ['NAME', ...(hasMembers ? ['MEMBER'] : []), 'ID', '>MEMORY', 'PROCESSOR', '>CONTEXT', 'UNTIL'],
    [
      ...models.map(({ name, member, digest, size, size_vram, context_length, expires_at }) => [
        name,
        ...memberCell({ member }),
        digest.slice(0, 12),
        formatBytes(size),
        formatProcessor(size, size_vram),
        String(context_length),
        relativeTime(expires_at, now)
      ]),
      ...loading.map(({ name, member, state, status }) => [
        name,
        ...memberCell({ member }),
        '',
        '',
        '',
        '',
        status ?? state
      ])
    ]
  )
}

/** Share of a model's memory on each device: `100% GPU`, `100% CPU` or `48%/52% CPU/GPU`. */
export function formatProcessor(size: number, vram: number): string {
  if (vram <= 0 || size <= 0) return '100% CPU'
  if (vram >= size) return '100% GPU'
  const cpu = Math.min(99, Math.max(1, Math.round((1 - vram / size) * 100)))
  return `${cpu}%/${100 - cpu}% CPU/GPU`
}

export function defineStop(program: CorralCommand, context: CommandContext): void {
  program
    .command('stop')
    .description('unload a model from memory and abort its active requests')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .notes(`
Exit codes: 0 unloaded, 3 no server is running (so no model is loaded), 4 there is no such model, or it is not loaded.

Example:
  corral stop corral/tiny-chat`)
    .action(async (model: string) => {
      await ask(context, 'POST', '/api/stop', { model }, NOTHING_LOADED)
      printNote(`stopped ${model}`)
    })
}

interface LogsReply {
  model: string
  /** Newest first. */
  engines: EngineLogRecord[]
}

function lineCount(text: string): number {
  const count = Number(text)
  if (!Number.isSafeInteger(count) || count < 0) throw new InvalidArgumentError('It must be a whole number, 0 or more.')
  return count
}

export function defineLogs(program: CorralCommand, context: CommandContext): void {
  program
    .command('logs')
    .description('show what the engines of a model did and why they stopped')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .option('-f, --follow', 'print new lines as they arrive, until Ctrl-C')
    .option('-n, --lines <count>', 'only the last lines of each engine', lineCount)
    .option('--raw', 'print the raw log lines of the engines')
    .option('--json', 'print the reply of GET /api/logs/<model>')
    .notes(`
The logs of the latest engines are available while the server runs, even after the engines have stopped.

Examples:
  corral logs corral/tiny-chat
  corral logs corral/tiny-chat -n 20 -f`)
    .action(async (model: string, options: { follow?: boolean; lines?: number; raw?: boolean; json?: boolean }) => {
      const { follow, lines, raw = false, json } = options
      // Few raw lines become an event, so all of them are requested and the last events are printed.
      const asked = raw || json ? lines : follow ? (lines ?? MAX_ENGINE_LINES) : undefined
      const query = asked === undefined ? '' : `lines=${asked}`
      const path = `/api/logs/${model}`
      await withServer(
        context,
        'fail',
        async ({ client }) => {
          if (follow) {
            for await (const event of client.stream<LogEvent>(`${path}?follow=1&${query}`)) {
              if (json) printText(printable(JSON.stringify(event)))
              else {
                const text = eventText(event, raw)
                if (text !== undefined) printText(wrapLines(printable(text), undefined, 2))
              }
            }
            return
          }
          const reply = await client.json<LogsReply>('GET', `${path}?${query}`)
          if (json) printJson(reply)
          else if (raw) printText(wrapLines(printable(formatRawLogs(reply)), undefined, 2))
          else printText(wrapLines(printable(formatLogs(reply, lines))))
        },
        'Engine logs exist only while the server runs.'
      )
    })
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
