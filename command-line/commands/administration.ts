import { setTimeout as sleep } from 'node:timers/promises'
import type { ReloadReport } from '../../core/contracts/native-records.ts'
import { parseDuration } from '../../core/system/duration.ts'
import type { LevelReport } from '../../core/system/log-levels.ts'
import { version as ownVersion } from '../../core/system/package-info.ts'
import { plural } from '../../core/system/plural.ts'
import type { DrainState } from '../../plugins/apis/native/readiness.ts'
import type { AuditEntry } from '../../plugins/people/audit/audit-entry.ts'
import type { UsageReply } from '../../plugins/people/usage/usage-routes.ts'
import { CommandFailure, EXIT, failure, interruption } from '../command-failure.ts'
import { type CommandContext, usageFailure } from '../context.ts'
import { formatPairs, formatTable, printable, printJson, printNote, printText } from '../output.ts'
import type { ServerClient } from '../server-client.ts'
import { ask, unlessNoServer, withServer } from '../server-connection.ts'

export async function version(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const running = withServer(context, 'fail', async ({ client }) => {
    const { version } = await client.json<{ version: string }>('GET', '/api/version')
    return { version, address: client.address }
  })
  const server = (await unlessNoServer(running)) ?? null
  const platform = `${process.platform}-${process.arch}`
  if (json) return printJson({ corral: ownVersion, node: process.version, platform, server })
  printText(
    formatPairs(
      [
        ['corral', ownVersion],
        ['node', `${process.version} on ${platform}`],
        ['server', server ? `${server.version} at ${server.address}` : 'none is running']
      ],
      ''
    )
  )
}

interface UsageOptions {
  by: UsageReply['by']
  since: string
  json?: boolean
}

export async function usage(context: CommandContext, { by, since, json }: UsageOptions): Promise<void> {
  const reply = await ask<UsageReply>(context, 'GET', `/api/usage?${new URLSearchParams({ by, since })}`)
  if (json) printJson(reply)
  else printText(formatUsage(reply))
}

export function formatUsage({ by, usage, total }: UsageReply): string {
  const cells = (name: string, { requests, tokens_in, tokens_cached, tokens_out }: UsageReply['total']) => [
    name,
    ...[requests, tokens_in, tokens_cached, tokens_out].map(String)
  ]
  return formatTable(
    [by.toUpperCase(), '>REQUESTS', '>IN', '>CACHED', '>OUT'],
    [...usage.map(row => cells(row.name, row)), cells('total', total)]
  )
}

interface AuditOptions {
  since?: string
  key?: string
  limit?: string
  follow?: boolean
  json?: boolean
}

export async function audit(context: CommandContext, { json, follow, ...filter }: AuditOptions): Promise<void> {
  const { limit } = filter
  if (limit !== undefined && !/^[1-9]\d{0,4}$/.test(limit)) {
    throw usageFailure(`--limit cannot be "${limit}". It must be a whole number from 1 to 99999.`)
  }
  const query = new URLSearchParams()
  for (const name of ['since', 'key', 'limit'] as const) {
    if (filter[name] !== undefined) query.set(name, filter[name])
  }
  await withServer(
    context,
    'fail',
    async ({ client }) => {
      if (follow) {
        query.set('follow', '1')
        for await (const entry of client.stream<AuditEntry>(`/api/audit?${query}`)) {
          printText(printable(json ? JSON.stringify(entry) : toCells(entry).join('  ')))
        }
        return
      }
      const { entries } = await client.json<{ entries: AuditEntry[] }>('GET', `/api/audit?${query}`)
      if (json) printJson(entries)
      else printText(formatEntries(entries))
    },
    { why: 'The audit log is read through the server.', or: home => `read logs/audit/*.jsonl in ${home}` }
  )
}

export function formatEntries(entries: readonly AuditEntry[]): string {
  if (entries.length === 0) return 'No entries match. Try a longer --since, or leave out --key.'
  return formatTable(['TIME', 'WHO', 'WHAT', 'MODEL', 'OUTCOME', '>TOKENS', '>TIME TAKEN'], entries.map(toCells))
}

function toCells(entry: AuditEntry): string[] {
  const { time, key, address, event, by, operation, surface, method, route, model, target, status, code, ms } = entry
  const { tokens, omitted, statuses, lost } = entry as AuditEntry & Record<'omitted' | 'statuses' | 'lost', unknown>
  const counts = [omitted, lost, statuses && JSON.stringify(statuses)].filter(each => each !== undefined)
  return [
    `${time.slice(0, 19)}Z`,
    key ?? address ?? by ?? '-',
    event ?? `${operation ?? `${method} ${route ?? '?'}`}${surface ? ` (${surface})` : ''}`,
    model ?? target ?? '-',
    status === undefined ? counts.join(' ') || '-' : `${status}${code ? ` ${code}` : ''}`,
    tokens ? `${tokens.in}+${tokens.out}` : '-',
    ms === undefined ? '-' : `${ms} ms`
  ]
}

/** Every part that has no specific level. */
const ALL = 'all'

/** @param level `default` resets a part to the default level */
export async function logLevel(
  context: CommandContext,
  part: string | undefined,
  level: string | undefined,
  { json }: { json?: boolean }
): Promise<void> {
  const change = { part: part === ALL ? null : part, level: level === 'default' ? null : level }
  const report = await withServer(
    context,
    'fail',
    ({ client }) =>
      level === undefined
        ? client.json<LevelReport>('GET', '/api/log-levels')
        : client.json<LevelReport>('PUT', '/api/log-levels', change),
    'Log levels belong to a running server.'
  )
  const { default: usual, parts } = report
  const rows = [[ALL, usual], ...Object.entries(parts)].filter(([name]) => part === undefined || name === part)
  if (level === undefined && rows.length === 0) {
    const message = `"${part}" is not a part of the server. List the parts with "corral log-level".`
    throw new CommandFailure(EXIT.usage, message)
  }
  if (json) printJson(report)
  else printText(formatTable(['PART', 'LEVEL'], rows))
}

export async function reload(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const report = await ask<ReloadReport>(context, 'POST', '/api/reload', undefined, { whenNone: 'fail' })
  if (json) return printJson(report)
  const [{ reportLines }, { unknownWarning }] = await Promise.all([
    import('../../core/config/reloader.ts'),
    import('../../core/config/config-error.ts')
  ])
  for (const problem of report.unknown) printNote(`warning: ${unknownWarning(problem)}`)
  printText(reportLines(report).join('\n'))
}

const DRAIN_POLL_MS = 250

interface DrainOptions {
  wait?: boolean
  timeout?: string
  undo?: boolean
}

export async function drain(context: CommandContext, { wait, timeout, undo }: DrainOptions): Promise<void> {
  const limit = timeout === undefined ? Number.POSITIVE_INFINITY : parseDuration(timeout)
  if (limit === undefined || limit < 0) {
    throw usageFailure(`"${timeout}" is not a valid duration. Use one such as 5m.`)
  }
  if (undo && (wait || timeout !== undefined)) {
    throw usageFailure('--undo cannot be combined with --wait or --timeout.')
  }
  await withServer(context, 'fail', async ({ client }) => {
    if (undo) {
      await client.json<DrainState>('DELETE', '/api/drain')
      return printNote('The server accepts requests again.')
    }
    const { open } = await client.json<DrainState>('POST', '/api/drain')
    printNote(`The server accepts no new requests; ${openText(open)}.`)
    if (wait || timeout !== undefined) await untilDrained(client, limit)
  })
}

async function untilDrained(client: ServerClient, limit: number): Promise<void> {
  const signal = interruption()
  const began = performance.now()
  for (;;) {
    const { draining, open } = await client.json<DrainState>('GET', '/api/drain')
    if (!draining) {
      throw failure(
        'Someone ended the drain, and the server accepts requests again. Start over with: corral drain --wait'
      )
    }
    if (open === 0) return printNote('All requests have finished. The server can be stopped.')
    if (performance.now() - began >= limit) {
      throw failure(
        `The drain timed out: ${openText(open)}. The server still accepts no new requests. Wait longer, or end the drain with: corral drain --undo`
      )
    }
    await sleep(DRAIN_POLL_MS, undefined, { signal }).catch(() => signal.throwIfAborted())
  }
}

const openText = (open: number) => `${plural(open, 'request')} ${open === 1 ? 'is' : 'are'} open`
