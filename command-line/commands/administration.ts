import { setTimeout as sleep } from 'node:timers/promises'
import type { ReloadReport } from '../../core/contracts/native-records.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { parseDuration } from '../../core/system/duration.ts'
import type { LevelReport } from '../../core/system/log-levels.ts'
import { version as ownVersion } from '../../core/system/package-info.ts'
import { plural } from '../../core/system/plural.ts'
import type { CacheReport, ClearedCache } from '../../plugins/apis/native/cache-routes.ts'
import type { DrainState } from '../../plugins/apis/native/readiness.ts'
import type { AuditEntry } from '../../plugins/people/audit/audit-entry.ts'
import type { Capture } from '../../plugins/people/audit/captures/captures.ts'
import type { UsageReply } from '../../plugins/people/usage/usage-routes.ts'
import { failure, interruption, misuse } from '../command-failure.ts'
import { type CommandContext, type Options, usageFailure } from '../context.ts'
import {
  formatPairs,
  formatTable,
  printable,
  printJson,
  printNote,
  printResult,
  printText,
  relativeTime
} from '../output.ts'
import { ask, type ServerConnection, unlessNoServer, withServer } from '../server-connection.ts'

export async function version(context: CommandContext, { json }: Options): Promise<void> {
  const running = withServer(context, 'fail', async ({ client }) => {
    const { version } = await client.json<{ version: string }>('GET', '/api/version')
    return { version, address: client.address }
  })
  const server = (await unlessNoServer(running)) ?? null
  const platform = `${process.platform}-${process.arch}`
  printResult(json, { corral: ownVersion, node: process.version, platform, server }, () =>
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

export async function usage(context: CommandContext, { by, since, json }: Options & { by: string; since: string }) {
  const reply = await ask<UsageReply>(context, 'GET', `/api/usage?${new URLSearchParams({ by, since })}`)
  printResult(json, reply, ({ by, usage, total }) => {
    const rows = [...usage, { name: 'total', ...total }].map(row => [
      row.name,
      ...[row.requests, row.tokens_in, row.tokens_cached, row.tokens_out].map(String)
    ])
    return formatTable([by.toUpperCase(), '>REQUESTS', '>IN', '>CACHED', '>OUT'], rows)
  })
}

type AuditOptions = Options<'follow' | 'json', 'since' | 'key'> & { limit?: number }

export async function audit(context: CommandContext, { json, follow, ...filter }: AuditOptions): Promise<void> {
  const query = new URLSearchParams()
  for (const name of ['since', 'key', 'limit'] as const) {
    if (filter[name] !== undefined) query.set(name, String(filter[name]))
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
      printResult(json, entries, () =>
        entries.length === 0
          ? 'No entries match. Try a longer --since, or leave out --key.'
          : formatTable(['TIME', 'WHO', 'WHAT', 'MODEL', 'OUTCOME', '>TOKENS', '>TIME TAKEN'], entries.map(toCells))
      )
    },
    { why: 'The audit log is read through the server.', or: home => `read logs/audit/*.jsonl in ${home}` }
  )
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
  { json }: Options
): Promise<void> {
  const change = { part: part === ALL ? null : part, level: level === 'default' ? null : level }
  const report = await ask<LevelReport>(
    context,
    level === undefined ? 'GET' : 'PUT',
    '/api/log-levels',
    level === undefined ? undefined : change,
    { whenNone: 'fail', without: 'Log levels belong to a running server.' }
  )
  const { default: usual, parts } = report
  const rows = [[ALL, usual], ...Object.entries(parts)].filter(([name]) => part === undefined || name === part)
  if (level === undefined && rows.length === 0) {
    throw misuse(`"${part}" is not a part of the server. List the parts with "corral log-level".`)
  }
  printResult(json, report, () => formatTable(['PART', 'LEVEL'], rows))
}

export async function reload(context: CommandContext, { json }: Options): Promise<void> {
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

export async function drain(context: CommandContext, options: Options<'wait' | 'undo', 'timeout'>): Promise<void> {
  const { wait, timeout, undo } = options
  const limit = timeout === undefined ? Number.POSITIVE_INFINITY : parseDuration(timeout)
  if (limit === undefined || limit < 0) {
    throw usageFailure(`"${timeout}" is not a valid duration. Use one such as 5m.`)
  }
  await withServer(context, 'fail', async ({ client }) => {
    if (undo) {
      await client.json<DrainState>('DELETE', '/api/drain')
      return printNote('The server accepts requests again.')
    }
    const { open } = await client.json<DrainState>('POST', '/api/drain')
    printNote(`The server accepts no new requests; ${openText(open)}.`)
    const signal = interruption()
    const began = performance.now()
    while (wait || timeout !== undefined) {
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
  })
}

const openText = (open: number) => `${plural(open, 'request')} ${open === 1 ? 'is' : 'are'} open`

export async function cacheList(context: CommandContext, { json }: Options): Promise<void> {
  const report = await ask<CacheReport>(context, 'GET', '/api/cache')
  if (!json && report.models.length === 0) return printNote('Nothing is stored yet.')
  printResult(json, report, ({ models }) => {
    const rows = models.map(({ model, conversations, tokens, memory, disk, hits, misses, restored_tokens }) => [
      model,
      `${conversations}`,
      `${tokens}`,
      formatBytes(memory),
      formatBytes(disk),
      hits + misses === 0 ? '-' : `${Math.round((100 * hits) / (hits + misses))} %`,
      `${restored_tokens}`
    ])
    return formatTable(['MODEL', '>CONVERSATIONS', '>TOKENS', '>MEMORY', '>DISK', '>FOUND', '>SAVED'], rows)
  })
}

export async function cacheClear(context: CommandContext, model: string | undefined): Promise<void> {
  const query = model === undefined ? '' : `?${new URLSearchParams({ model })}`
  const { deleted } = await ask<ClearedCache>(context, 'DELETE', `/api/cache${query}`)
  printNote(`Deleted ${plural(deleted, 'stored conversation')}.`)
}

const ASKS = { whenNone: 'fail', without: 'Only a running server can capture.' } as const
type CaptureOptions = Options<'json', 'key' | 'model' | 'maxBytes'> & { for: string }

export async function captureStart(context: CommandContext, options: CaptureOptions): Promise<void> {
  const { key, model, for: time, maxBytes, json } = options
  const wanted = { key, model, for: time, max_bytes: maxBytes }
  const made = await ask<Capture>(context, 'POST', '/api/captures', wanted, ASKS)
  if (json) return printJson(made)
  printText(made.id)
  printNote(`The capture ends ${made.endsAt}. Stop it earlier with: corral capture stop ${made.id}`)
}

export async function captureList(context: CommandContext, { json }: Options): Promise<void> {
  const { captures } = await ask<{ captures: Capture[] }>(context, 'GET', '/api/captures', undefined, ASKS)
  const now = new Date()
  printResult(json, captures, () => {
    if (captures.length === 0) return 'There are no captures.'
    const rows = captures.map(
      ({ id, key, model, by, records, bytes, dropped, startedAt, endsAt, endedAt, endReason }) => [
        id,
        [key && `key ${key}`, model && `model ${model}`].filter(Boolean).join(', '),
        by,
        relativeTime(startedAt, now),
        endedAt === undefined ? `ends ${relativeTime(endsAt, now)}` : `${endReason} ${relativeTime(endedAt, now)}`,
        `${records}${dropped > 0 ? ` (${dropped} not kept)` : ''}`,
        formatBytes(bytes)
      ]
    )
    return formatTable(['ID', 'OF', 'BY', 'BEGAN', 'END', '>RECORDS', '>SIZE'], rows)
  })
}

export async function captureShow(context: CommandContext, id: string): Promise<void> {
  const print = async ({ client }: ServerConnection) => {
    for await (const record of client.stream<object>(at(id))) printText(printable(JSON.stringify(record)))
  }
  await withServer(context, 'fail', print, ASKS.without)
}

export async function captureStop(context: CommandContext, id: string): Promise<void> {
  const { records } = await ask<Capture>(context, 'POST', `${at(id)}/stop`, {}, ASKS)
  printNote(`The capture ${id} has ended with ${plural(records, 'record')}.`)
}

export async function captureRm(context: CommandContext, id: string): Promise<void> {
  await ask(context, 'DELETE', at(id), undefined, ASKS)
  printNote(`The capture ${id} was deleted.`)
}

const at = (id: string) => `/api/captures/${encodeURIComponent(id)}`
