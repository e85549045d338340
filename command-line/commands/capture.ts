import type { Command } from 'commander'
import { formatBytes } from '../../core/system/bytes.ts'
import type { Capture } from '../../plugins/audit/captures/capture-records.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { ask, withServer } from '../server-connection.ts'

interface StartOptions {
  key?: string
  model?: string
  for: string
  maxBytes?: string
  json?: boolean
}

const ASKS = { whenNone: 'fail', without: 'A server is needed for captures.' } as const

export function defineCapture(program: Command, context: CommandContext): void {
  const capture = program
    .command('capture')
    .description('write requests and answers down for a while, to look into a problem')
    .addHelpText(
      'after',
      `
Off unless an admin begins it. Captured answers say so in the header x-corral-captured, the log and "corral audit" when
a capture begins and ends. The files are logs/captures/ in the data directory, for the server's user alone; they go after
audit.capture_keep days. A capture ends with the server. A plugin with a hook "capture" can redact what is kept.

Examples:
  corral capture start --key alice --for 10m
  corral capture start --model corral/tiny-chat --for 1h
  corral capture list
  corral capture show c0123456789ab
  corral capture rm c0123456789ab`
    )

  capture
    .command('start')
    .description('begin one; its id is printed')
    .option('--key <name>', 'requests of this key')
    .option('--model <model>', 'requests to this model; with --key those of the key to it')
    .requiredOption('--for <time>', 'how long: 10m, 2h; at most 24h')
    .option('--max-bytes <size>', 'size at which it ends (64MiB)')
    .option('--json', 'print the reply of POST /api/captures')
    .action(async ({ key, model, for: time, maxBytes, json }: StartOptions) => {
      const wanted = { key, model, for: time, max_bytes: maxBytes }
      const made = await ask<Capture>(context, 'POST', '/api/captures', wanted, ASKS)
      if (json) return printJson(made)
      printText(made.id)
      printNote(`It ends ${made.endsAt}, or with: corral capture stop ${made.id}`)
    })

  capture
    .command('list')
    .description('list those that go on and those that are kept')
    .option('--json', 'print the field "captures" of GET /api/captures')
    .action(async ({ json }: { json?: boolean }) => {
      const { captures } = await ask<{ captures: Capture[] }>(context, 'GET', '/api/captures', undefined, ASKS)
      if (json) printJson(captures)
      else printText(printable(formatCaptures(captures, new Date())))
    })

  capture
    .command('show')
    .description('print captured requests and answers, a line of JSON each')
    .argument('<id>')
    .action(async (id: string) => {
      await withServer(
        context,
        'fail',
        async ({ client }) => {
          for await (const record of client.stream<object>(at(id))) printText(printable(JSON.stringify(record)))
        },
        ASKS.without
      )
    })

  capture
    .command('stop')
    .description('end one before its time; what it has is kept')
    .argument('<id>')
    .action(async (id: string) => {
      const { records } = await ask<Capture>(context, 'POST', `${at(id)}/stop`, {}, ASKS)
      printNote(`The capture ${id} has ended with ${records} records.`)
    })

  capture
    .command('rm')
    .description('end one and delete what it has')
    .argument('<id>')
    .action(async (id: string) => {
      await ask(context, 'DELETE', at(id), undefined, ASKS)
      printNote(`The capture ${id} is deleted.`)
    })
}

const at = (id: string) => `/api/captures/${encodeURIComponent(id)}`

function formatCaptures(captures: readonly Capture[], now: Date): string {
  if (captures.length === 0) return 'Nothing is captured.'
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
