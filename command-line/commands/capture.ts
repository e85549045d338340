import { formatBytes } from '../../core/system/bytes.ts'
import { plural } from '../../core/system/plural.ts'
import type { Capture } from '../../plugins/people/audit/captures/capture-records.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { ask, type ServerConnection, withServer } from '../server-connection.ts'

interface StartOptions {
  key?: string
  model?: string
  for: string
  maxBytes?: string
  json?: boolean
}

const ASKS = { whenNone: 'fail', without: 'Only a running server can capture.' } as const

export async function captureStart(context: CommandContext, options: StartOptions): Promise<void> {
  const { key, model, for: time, maxBytes, json } = options
  const wanted = { key, model, for: time, max_bytes: maxBytes }
  const made = await ask<Capture>(context, 'POST', '/api/captures', wanted, ASKS)
  if (json) return printJson(made)
  printText(made.id)
  printNote(`The capture ends ${made.endsAt}. Stop it earlier with: corral capture stop ${made.id}`)
}

export async function captureList(context: CommandContext, { json }: { json?: boolean }): Promise<void> {
  const { captures } = await ask<{ captures: Capture[] }>(context, 'GET', '/api/captures', undefined, ASKS)
  if (json) printJson(captures)
  else printText(formatCaptures(captures, new Date()))
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

function formatCaptures(captures: readonly Capture[], now: Date): string {
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
}
