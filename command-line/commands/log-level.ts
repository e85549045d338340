import type { LevelReport } from '../../core/system/log-levels.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { formatTable, printable, printJson, printText } from '../output.ts'
import { withServer } from '../server-connection.ts'

/** Resets a part to the default level. */
const RESET = 'default'
/** Every part that has no specific level. */
const ALL = 'all'

export function defineLogLevel(program: CorralCommand, context: CommandContext): void {
  program
    .command('log-level')
    .description('show or change the log levels of a running server')
    .argument('[part]', 'a plugin or a part of the core; "all" means every part without a specific level')
    .argument('[level]', `trace, debug, info, warn, error, fatal, silent; "${RESET}" resets a part to the default`)
    .option('--json', 'print the reply of GET /api/log-levels')
    .notes(`
Changes last until the server stops. For permanent changes, set "log_level" and "log_levels" in config.yaml. This needs
the role admin.

Examples:
  corral log-level
  corral log-level scheduler debug
  corral log-level scheduler default`)
    .action(async (part: string | undefined, level: string | undefined, { json }: { json?: boolean }) => {
      const report = await withServer(
        context,
        'fail',
        async ({ client }) => {
          if (part === undefined || level === undefined) {
            const report = await client.json<LevelReport>('GET', '/api/log-levels')
            if (part === undefined || part === ALL || part in report.parts) return report
            throw new CommandFailure(
              EXIT.usage,
              `"${part}" is not a part of the server. List the parts with "corral log-level".`
            )
          }
          const body = { part: part === ALL ? null : part, level: level === RESET ? null : level }
          return client.json<LevelReport>('PUT', '/api/log-levels', body)
        },
        'Log levels belong to a running server.'
      )
      if (json) printJson(report)
      else printText(printable(formatLevels(report, part)))
    })
}

/** @param part shows only this part */
function formatLevels({ default: usual, parts }: LevelReport, part?: string): string {
  const rows = [[ALL, usual], ...Object.entries(parts)]
  return formatTable(['PART', 'LEVEL'], part === undefined ? rows : rows.filter(([name]) => name === part))
}
