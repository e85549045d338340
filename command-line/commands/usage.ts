import { Option } from 'commander'
import type { UsageReply } from '../../plugins/people/usage/usage-routes.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatTable, printJson, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

interface UsageOptions {
  by: UsageReply['by']
  since: string
  json?: boolean
}

export function defineUsage(program: CorralCommand, context: CommandContext): void {
  program
    .command('usage')
    .description('show the requests and tokens of each key')
    .addOption(new Option('--by <what>', 'group by').choices(['key', 'model', 'day']).default('key'))
    .option('--since <when>', 'first day: 7d, 2w or 2025-12-31', '30d')
    .option('--json', 'print the reply of GET /api/usage')
    .notes(`
IN is prompt tokens, CACHED is the part of IN that came from the prompt cache, OUT is generated tokens. Usage is counted in
whole days, which start at 00:00 UTC. All clients without a key share one line. Set limits with "corral key create --limit"
or "limits" in config.yaml.

Examples:
  corral usage
  corral usage --by day --since 7d`)
    .action(async ({ by, since, json }: UsageOptions) => {
      const reply = await ask<UsageReply>(context, 'GET', `/api/usage?${new URLSearchParams({ by, since })}`)
      if (json) printJson(reply)
      else printText(formatUsage(reply))
    })
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
