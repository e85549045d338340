import type { ReloadReport } from '../../core/contracts/native-records.ts'
import type { CommandContext } from '../context.ts'
import type { CorralCommand } from '../corral-command.ts'
import { printJson, printNote, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

export function defineReload(program: CorralCommand, context: CommandContext): void {
  program
    .command('reload')
    .description('make the running server reload its configuration')
    .option('--json', 'print the reply of POST /api/reload')
    .notes(`
Changes apply immediately: active requests continue, and models whose settings did not change stay loaded. Settings that
need a restart are listed. A file with errors changes nothing. SIGHUP also reloads the configuration, and with
"watch_config: true" every change of the file does.
The server keeps the flags and CORRAL_* variables that it was started with.
Exit codes: 0 done, 2 the configuration has errors (each with file, line and column), 3 no server can be reached.`)
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
