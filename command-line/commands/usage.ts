import { type Command, Option } from 'commander'
import type { UsageReply } from '../../plugins/people/usage/usage-routes.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printJson, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

interface UsageOptions {
  by: UsageReply['by']
  since: string
  json?: boolean
}

export function defineUsage(program: Command, context: CommandContext): void {
  program
    .command('usage')
    .description('show the requests and tokens of each key')
    .addOption(new Option('--by <what>', 'group by').choices(['key', 'model', 'day']).default('key'))
    .option('--since <when>', 'first day: 7d, 2w or 2025-12-31', '30d')
    .option('--json', 'print the reply of GET /api/usage')
    .addHelpText(
      'after',
      `
IN is what models read, CACHED what they had of it from before, OUT what they wrote. Days begin at 00:00 UTC and are
counted whole. Callers without a key are one line. Limits are set with "corral key create --limit" and "limits" in
config.yaml.

Examples:
  corral usage
  corral usage --by day --since 7d`
    )
    .action(async ({ by, since, json }: UsageOptions) => {
      const reply = await ask<UsageReply>(context, 'GET', `/api/usage?${new URLSearchParams({ by, since })}`)
      if (json) printJson(reply)
      else printText(formatUsage(reply))
    })
}

/** Formats usage as a table with the total last. */
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
