import { InvalidArgumentError } from 'commander'
import type { AuditEntry } from '../../plugins/people/audit/audit-entry.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatTable, printable, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'

interface AuditOptions {
  since?: string
  key?: string
  limit?: string
  follow?: boolean
  json?: boolean
}

function entryCount(text: string): string {
  if (!/^[1-9]\d{0,4}$/.test(text)) throw new InvalidArgumentError('It must be a whole number from 1 to 99999.')
  return text
}

export function defineAudit(program: CorralCommand, context: CommandContext): void {
  program
    .command('audit')
    .description('show requests to models and changes, with the key that made them')
    .option('--since <when>', 'only entries since then: 1h, 7d, or a time such as 2025-12-31T12:00:00Z')
    .option('--key <name>', 'only entries of this key')
    .option('-n, --limit <count>', 'maximum number of entries, newest first (100)', entryCount)
    .option('-f, --follow', 'print new entries as they arrive, until Ctrl-C')
    .option('--json', 'print the field "entries" of GET /api/audit; with --follow, one line of JSON per entry')
    .notes(`
The audit log never contains prompts, answers or keys. Its files are logs/audit/*.jsonl in the data directory. "audit"
in config.yaml sets how long they are kept. This needs the role admin.

Examples:
  corral audit --since 1h
  corral audit --key alice --json
  corral audit -f`)
    .action(async ({ since, key, limit, follow, json }: AuditOptions) => {
      const query = new URLSearchParams({
        ...(since !== undefined && { since }),
        ...(key !== undefined && { key }),
        ...(limit !== undefined && { limit })
      })
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
          else printText(printable(formatEntries(entries)))
        },
        { why: 'The audit log is read through the server.', or: home => `read logs/audit/*.jsonl in ${home}` }
      )
    })
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
