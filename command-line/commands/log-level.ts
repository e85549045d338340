import type { Command } from 'commander'
import type { LevelReport } from '../../core/system/log-levels.ts'
import type { CommandContext } from '../context.ts'
import { formatTable, printable, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'

/** What gives a part the default again. */
const RESET = 'default'

export function defineLogLevel(program: Command, context: CommandContext): void {
  program
    .command('log-level')
    .description('show or change what a running server logs')
    .argument('[part]', 'a plugin or a part of the core; "all" is those without a level of their own')
    .argument('[level]', `trace, debug, info, warn, error, fatal, silent; "${RESET}" is that of all others`)
    .option('--json', 'print the reply of GET /api/log-levels')
    .addHelpText(
      'after',
      `
What is changed holds until the server ends; "log_level" and "log_levels" in config.yaml are for longer. This needs the
role admin.

Examples:
  corral log-level
  corral log-level scheduler debug
  corral log-level scheduler default`
    )
    .action(async (part: string | undefined, level: string | undefined, { json }: { json?: boolean }) => {
      const report = await withServer(
        context,
        'fail',
        ({ client }) => {
          if (part === undefined || level === undefined) return client.json<LevelReport>('GET', '/api/log-levels')
          const body = { part: part === 'all' ? null : part, level: level === RESET ? null : level }
          return client.json<LevelReport>('PUT', '/api/log-levels', body)
        },
        'Levels are those of a running server.'
      )
      if (json) printJson(report)
      else printText(printable(formatLevels(report, part)))
    })
}

/** @param part only this one, where there is one of that name */
function formatLevels({ default: usual, parts }: LevelReport, part?: string): string {
  const rows = [['all', usual], ...Object.entries(parts)]
  const named = rows.filter(([name]) => name === part)
  return formatTable(['PART', 'LEVEL'], named.length > 0 ? named : rows)
}
