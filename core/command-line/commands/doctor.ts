import { setTimeout as sleep } from 'node:timers/promises'
import type { Command } from 'commander'
import type { LoadedConfig } from '../../config/load.ts'
import { ConfigError } from '../../config/problems.ts'
import { messageOf } from '../../errors.ts'
import { progressText } from '../../progress.ts'
import type { Runtimes, RuntimesReport } from '../../runtimes.ts'
import { type CommandContext, openConfig } from '../context.ts'
import { type DoctorReport, diskAndModels, formatDoctor, thisMachine } from '../doctor-report.ts'
import { EXIT } from '../failure.ts'
import { interruption } from '../interruption.ts'
import { printJson, printText } from '../output.ts'
import { showProgress } from '../progress-line.ts'
import { type ServerConnection, withServer } from '../server-connection.ts'

/** How often a server that looks for a build is asked how far it is (milliseconds). */
const POLL_INTERVAL = 500

export function defineDoctor(program: Command, context: CommandContext): void {
  program
    .command('doctor')
    .description('see what works on this machine, what is missing, and what to do about it')
    .option('--json', 'print the findings as JSON')
    .option('--no-build', 'tell what is known now: do not look for llama.cpp, nor download or build it')
    .addHelpText(
      'after',
      `
Looks for a llama.cpp build the way the server does and waits for it: where none is found it is downloaded or built,
which may take minutes the first time.
Exit codes: 0 all is well, 1 something is missing, 2 the configuration has mistakes.`
    )
    .action(async ({ json, build }: { json?: boolean; build: boolean }) => {
      const report = await examine(context, build)
      if (json) printJson(report)
      else printText(formatDoctor(report))
      if (report.config.problems.length > 0) process.exitCode = EXIT.usage
      else if (report.problems.length > 0) process.exitCode = EXIT.failure
    })
}

async function examine(context: CommandContext, build: boolean): Promise<DoctorReport> {
  const report: DoctorReport = { ...thisMachine(), config: { file: null, problems: [] }, problems: [] }
  let config: LoadedConfig
  try {
    config = await openConfig(context)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    report.config.problems.push(...error.problems)
    return report
  }
  report.config.file = config.file ?? null
  const { readOwner } = await import('../../data-directory.ts')
  try {
    // Asked before a server is started here: that one is no finding.
    report.data = { home: config.paths.home, holder: (await readOwner(config.paths)) ?? null }
    report.engine = await withServer(context, 'aside', connection => examineEngine(connection, build), {
      config,
      searchEngine: build
    })
    report.models = await diskAndModels(config.paths.models)
  } catch (error) {
    interruption().throwIfAborted()
    report.problems.push(messageOf(error))
  }
  if (report.engine?.state === 'failed') {
    report.problems.push('No llama.cpp build works here; the reasons are listed above with what would help.')
  }
  return report
}

/** Where a llama.cpp build comes from; waits until that is settled, unless it shall only be looked at. */
async function examineEngine({ client, own }: ServerConnection, build: boolean): Promise<RuntimesReport> {
  const read = () => client.json<RuntimesReport>('GET', '/api/runtimes')
  if (!build) return await read()
  const line = showProgress('looking for llama.cpp', 'plain lines')
  // A failed search is told by the report.
  own?.app
    .getDecorator<Runtimes>('runtimes')
    .build({ signal: interruption() })
    .catch(() => undefined)
  try {
    for (;;) {
      const report = await read()
      if (report.state !== 'searching') return report
      if (report.progress) line.update(progressText(report.progress))
      await sleep(POLL_INTERVAL, undefined, { signal: interruption() })
    }
  } catch (error) {
    interruption().throwIfAborted()
    throw error
  } finally {
    line.clear()
  }
}
