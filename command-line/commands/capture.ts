import { formatBytes } from '../../core/system/bytes.ts'
import { plural } from '../../core/system/plural.ts'
import type { Capture } from '../../plugins/people/audit/captures/capture-records.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatTable, printable, printJson, printNote, printText, relativeTime } from '../output.ts'
import { ask, withServer } from '../server-connection.ts'

interface StartOptions {
  key?: string
  model?: string
  for: string
  maxBytes?: string
  json?: boolean
}

const ASKS = { whenNone: 'fail', without: 'Only a running server can capture.' } as const

export function defineCapture(program: CorralCommand, context: CommandContext): void {
  const capture = program
    .command('capture')
    .description('record requests and answers for a while, to investigate a problem')
    .notes(`
Nothing is captured until an admin starts a capture. Captured answers have the header x-corral-captured, and the log and
"corral audit" report the start and end of each capture. The files are in logs/captures in the data directory, only
readable by the server's user, and are deleted after audit.capture_keep days. A capture ends when the server stops. A
plugin with a hook "capture" can redact the records.

Examples:
  corral capture start --key alice --for 10m
  corral capture start --model corral/tiny-chat --for 1h
  corral capture list
  corral capture show c0123456789ab
  corral capture rm c0123456789ab`)

  capture
    .command('start')
    .description('start a capture and print its id')
    .option('--key <name>', 'requests of this key')
    .option('--model <model>', 'requests to this model; with --key, only the requests of that key')
    .requiredOption('--for <time>', 'duration, such as 10m or 2h; at most 24h')
    .option('--max-bytes <size>', 'maximum size of the records (64MiB)')
    .option('--json', 'print the reply of POST /api/captures')
    .action(async ({ key, model, for: time, maxBytes, json }: StartOptions) => {
      const wanted = { key, model, for: time, max_bytes: maxBytes }
      const made = await ask<Capture>(context, 'POST', '/api/captures', wanted, ASKS)
      if (json) return printJson(made)
      printText(made.id)
      printNote(`The capture ends ${made.endsAt}. Stop it earlier with: corral capture stop ${made.id}`)
    })

  capture
    .command('list')
    .description('list running and finished captures')
    .option('--json', 'print the field "captures" of GET /api/captures')
    .action(async ({ json }: { json?: boolean }) => {
      const { captures } = await ask<{ captures: Capture[] }>(context, 'GET', '/api/captures', undefined, ASKS)
      if (json) printJson(captures)
      else printText(printable(formatCaptures(captures, new Date())))
    })

  capture
    .command('show')
    .description('print the captured requests and answers, one JSON line each')
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
    .description('end a capture early and keep its records')
    .argument('<id>')
    .action(async (id: string) => {
      const { records } = await ask<Capture>(context, 'POST', `${at(id)}/stop`, {}, ASKS)
      printNote(`The capture ${id} has ended with ${plural(records, 'record')}.`)
    })

  capture
    .command('rm')
    .description('end a capture and delete its records')
    .argument('<id>')
    .action(async (id: string) => {
      await ask(context, 'DELETE', at(id), undefined, ASKS)
      printNote(`The capture ${id} was deleted.`)
    })
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
