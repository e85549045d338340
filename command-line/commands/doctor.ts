import { statSync } from 'node:fs'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Command } from 'commander'
import type { LoadedConfig } from '../../core/config/load.ts'
import { ConfigError } from '../../core/config/problems.ts'
import type { Runtimes, RuntimesReport } from '../../core/contracts/builds.ts'
import { progressText } from '../../core/contracts/progress.ts'
import { messageOf } from '../../core/errors.ts'
import { type CommandContext, openConfig } from '../context.ts'
import type { DoctorReport } from '../doctor-schema.ts'
import { CommandFailure, EXIT } from '../failure.ts'
import { interruption } from '../interruption.ts'
import { printJson, printText } from '../output.ts'
import { showProgress } from '../progress-line.ts'
import type { ServerClient } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

/** How often a server that looks for a build is asked how far it is (milliseconds). */
const POLL_INTERVAL = 500
/** How long a server may take to answer, and the hardware and the list of releases to be looked at (milliseconds). */
const ANSWER_PATIENCE = 45_000

interface DoctorFlags {
  json?: boolean
  build: boolean
  sysroot?: string
}

export function defineDoctor(program: Command, context: CommandContext): void {
  program
    .command('doctor')
    .description('see what works on this machine, what is missing, and what to do about it')
    .option('--json', 'print the findings as JSON (docs/doctor.md tells what is in them)')
    .option('--no-build', 'tell what is known now: do not look for llama.cpp, nor download or build it')
    .option('--sysroot <folder>', 'look at the system files in this folder, as if it were /')
    .addHelpText(
      'after',
      `
Shows the hardware, every kind of llama.cpp build with how well it fits and what it lacks, and which one is used.
Looks for a build the way the server does and waits for it: where none is found it is downloaded or built, which may
take minutes the first time.

Examples:
  corral doctor
  corral doctor --no-build
  corral doctor --json | jq -r '.ranking[] | "\\(.score) \\(.runtime)"'

Exit codes: 0 all is well, 1 something is missing, 2 the configuration has mistakes.`
    )
    .action(async (flags: DoctorFlags) => {
      const report = await examine(context, flags)
      if (flags.json) printJson(report)
      else printText((await import('../doctor-text.ts')).formatDoctor(report))
      if (report.config.problems.length > 0) process.exitCode = EXIT.usage
      else if (report.problems.length > 0) process.exitCode = EXIT.failure
    })
}

async function examine(context: CommandContext, flags: DoctorFlags): Promise<DoctorReport> {
  const { checkWritable, diskAndModels, emptyReport, engineFindings, findProblems } = await import(
    '../doctor-report.ts'
  )
  const report = emptyReport()
  let config: LoadedConfig
  try {
    config = withSysroot(await openConfig(context), context, flags.sysroot)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    report.config.problems.push(...error.problems)
    return report
  }
  report.config.file = config.file ?? null
  report.config.problems.push(...config.unknown)
  /** Runs one part of the examination; the others go on when it fails. */
  const examined = async <Result>(work: () => Promise<Result>): Promise<Result | undefined> => {
    try {
      return await work()
    } catch (error) {
      interruption().throwIfAborted()
      const message = messageOf(error)
      // What stands in the way of one part mostly does so for the next.
      if (!report.problems.includes(message)) report.problems.push(message)
      return undefined
    }
  }
  const { readOwner } = await import('../../core/system/data-directory.ts')
  const holder = await examined(() => readOwner(config.paths))
  report.data = { home: config.paths.home, holder: holder ?? null }
  await examined(() => checkWritable(config.paths.home))
  const models = await examined(() => diskAndModels(config.paths.models))
  if (models) report.models = models
  const { planAddresses, serverSettingsOf } = await import('../server-address.ts')
  const { local } = planAddresses(serverSettingsOf(config))
  const before = report.problems.length
  let findings: RuntimesReport | undefined
  // A server knows nothing of another root.
  if (flags.sysroot === undefined) findings = await examined(() => askServer(context, config, flags.build))
  const silent = !findings && report.problems.length > before
  if (!findings && (local || flags.sysroot !== undefined)) {
    // Two at once should not get a build: the server that is silent may be busy with just that.
    findings = await examined(() => examineHere(context, config, flags.build && !silent))
  }
  if (findings) Object.assign(report, engineFindings(findings))
  report.problems.push(...findProblems(report))
  return report
}

/** The configuration with another root for the system's files. @throws CommandFailure when it is no folder */
function withSysroot(config: LoadedConfig, { cwd }: CommandContext, sysroot: string | undefined): LoadedConfig {
  if (sysroot === undefined) return config
  const root = resolve(cwd, sysroot)
  if (!statSync(root, { throwIfNoEntry: false })?.isDirectory()) {
    throw new CommandFailure(EXIT.usage, `--sysroot wants a folder with a system's files; ${root} is none.`)
  }
  const hardware = { ...config.sections.hardware, sysroot: root }
  return { ...config, sections: { ...config.sections, hardware } }
}

/**
 * What a running server says of its builds, once it has settled on one; undefined where none runs.
 * @throws CommandFailure when a server that should answer does not
 */
async function askServer(
  context: CommandContext,
  config: LoadedConfig,
  build: boolean
): Promise<RuntimesReport | undefined> {
  const { readOwner } = await import('../../core/system/data-directory.ts')
  const { planAddresses, serverSettingsOf } = await import('../server-address.ts')
  try {
    return await withServer(context, 'fail', ({ client }) => askUntilSettled(client, build), { config })
  } catch (error) {
    const none = error instanceof CommandFailure && error.exitCode === EXIT.noServer
    if (none && planAddresses(serverSettingsOf(config)).local && !(await readOwner(config.paths))) return undefined
    throw error
  }
}

async function askUntilSettled(client: ServerClient, build: boolean): Promise<RuntimesReport> {
  const line = showProgress('looking for llama.cpp', 'plain lines')
  try {
    for (;;) {
      const report = await withPatience(
        signal => client.json<RuntimesReport>('GET', '/api/runtimes', undefined, signal),
        client.address
      )
      if (!Array.isArray(report.ranking)) {
        throw new CommandFailure(EXIT.failure, `The server at ${client.address} is of another version of corral.`)
      }
      if (!build || report.state !== 'searching') return report
      if (report.progress) line.update(progressText(report.progress))
      await sleep(POLL_INTERVAL, undefined, { signal: interruption() })
    }
  } finally {
    line.clear()
  }
}

/** Looks by this process itself, and finds or makes a build where that is wanted. */
async function examineHere(context: CommandContext, config: LoadedConfig, build: boolean): Promise<RuntimesReport> {
  const { withOwnRuntimes } = await import('../own-runtimes.ts')
  return await withOwnRuntimes(context, config, async runtimes => {
    await withPatience(signal => runtimes.rank({ signal }), 'the hardware')
    if (build) await findBuild(runtimes)
    return runtimes.report()
  })
}

async function findBuild(runtimes: Runtimes): Promise<void> {
  const line = showProgress('looking for llama.cpp', 'plain lines')
  try {
    await runtimes.build({ signal: interruption(), onProgress: progress => line.update(progressText(progress)) })
  } catch {
    interruption().throwIfAborted()
    // A search that failed is told by the report.
  } finally {
    line.clear()
  }
}

/** Waits, but not for ever. @throws CommandFailure that names what did not answer */
async function withPatience<Result>(work: (signal: AbortSignal) => Promise<Result>, subject: string): Promise<Result> {
  const late = AbortSignal.timeout(ANSWER_PATIENCE)
  try {
    return await work(AbortSignal.any([interruption(), late]))
  } catch (error) {
    interruption().throwIfAborted()
    if (!late.aborted) throw error
    const seconds = ANSWER_PATIENCE / 1000
    throw new CommandFailure(EXIT.failure, `Nothing was heard of ${subject} within ${seconds} seconds.`, error)
  }
}
