import type { Command } from 'commander'
import type { ReloadReport } from '../../core/contracts/native-records.ts'
import type { CommandContext } from '../context.ts'
import { printJson, printNote, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

export function defineReload(program: Command, context: CommandContext): void {
  program
    .command('reload')
    .description('make the running server reload its configuration')
    .option('--json', 'print the reply of POST /api/reload')
    .addHelpText(
      'after',
      `
What changed counts at once: running answers go on, and models whose settings did not change stay loaded. Settings that
need a restart are named. A file with mistakes changes nothing. SIGHUP does the same, and so does
"watch_config: true" whenever the file has changed.
Flags and CORRAL_* variables are those that the server was started with.
Exit codes: 0 done, 2 the configuration has mistakes (each with file, line and column), 3 no server can be reached.`
    )
    .action(async ({ json }: { json?: boolean }) => {
      const report = await ask<ReloadReport>(context, 'POST', '/api/reload', undefined, { whenNone: 'fail' })
      if (json) return printJson(report)
      const [{ reportLines }, { unknownWarning }] = await Promise.all([
        import('../../core/config/reloader.ts'),
        import('../../core/config/config-error.ts')
      ])
      for (const problem of report.unknown) printNote(`warning: ${unknownWarning(problem)}`)
      printText(reportLines(report).join('\n'))
    })
}
