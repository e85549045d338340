import { statSync } from 'node:fs'
import { access, constants } from 'node:fs/promises'
import { arch, release, type } from 'node:os'
import { dirname, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigError } from '../../core/config/config-error.ts'
import type { LoadedConfig } from '../../core/config/load.ts'
import type { RuntimesReport } from '../../core/contracts/builds.ts'
import type { Hardware, HardwareProblem } from '../../core/contracts/hardware.ts'
import { progressText } from '../../core/contracts/progress.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { readOwner } from '../../core/system/data-directory.ts'
import { freeSpace } from '../../core/system/disk-space.ts'
import { version } from '../../core/system/package-info.ts'
import { CommandFailure, EXIT, failure, interruption } from '../command-failure.ts'
import { type CommandContext, openConfig } from '../context.ts'
import type { DoctorReport } from '../doctor-schema.ts'
import { formatDoctor } from '../doctor-text.ts'
import { withLocalService } from '../local-service.ts'
import { printJson, printText } from '../output.ts'
import { type Progress, showProgress } from '../progress-display.ts'
import { planAddresses, toServerSettings } from '../server-address.ts'
import { type ServerConnection, unlessNoServer, withServer } from '../server-connection.ts'

const POLL_INTERVAL_MS = 500
/** Time limit for the server, which first detects the hardware and lists the releases. */
const ANSWER_TIMEOUT_MS = 45_000

interface DoctorFlags {
  json?: boolean
  build: boolean
  sysroot?: string
}

export async function doctor(context: CommandContext, flags: DoctorFlags): Promise<void> {
  const report = await examine(context, flags)
  if (flags.json) printJson(report)
  else printText(formatDoctor(report))
  if (report.config.problems.length > 0) process.exitCode = EXIT.usage
  else if (report.problems.length > 0) process.exitCode = EXIT.failure
}

export function emptyReport(): DoctorReport {
  return {
    corral: version,
    node: process.version,
    platform: `${type()} ${release()} ${arch()}`,
    config: { file: null, problems: [] },
    ranking: [],
    attempts: [],
    installed: [],
    problems: []
  }
}

async function examine(context: CommandContext, flags: DoctorFlags): Promise<DoctorReport> {
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
  /** Runs one part of the examination. If it fails, the others still run. */
  const examined = async <Result>(work: () => Promise<Result>): Promise<Result | undefined> => {
    try {
      return await work()
    } catch (error) {
      interruption().throwIfAborted()
      const message = errorMessage(error)
      // One cause often makes several parts fail.
      if (!report.problems.includes(message)) report.problems.push(message)
      return undefined
    }
  }
  const { home, models } = config.paths
  const holder = await examined(() => readOwner(config.paths))
  report.data = { home, holder: holder ?? null }
  await examined(() => checkWritable(home))
  const free = await examined(async () => await freeSpace(await existing(models)))
  if (free !== undefined) report.models = { directory: models, free }
  const before = report.problems.length
  const { local } = planAddresses(toServerSettings(config))
  const otherRoot = flags.sysroot !== undefined
  const progress = await showProgress('looking for llama.cpp', { plain: flags.build ? 'lines' : 'nothing' })
  try {
    // A server knows nothing about another root folder.
    let findings = otherRoot
      ? undefined
      : await examined(() => reportOfServer(context, local && !holder, flags.build, progress))
    const serverFailed = report.problems.length > before
    if (!findings && (otherRoot || local)) {
      // A server that does not answer may be installing a build. Only one process may do that at a time.
      findings = await examined(() => examineHere(context, config, flags.build && !serverFailed, progress))
    }
    if (findings) {
      const { state, hardware, ranking, release, chosen, attempts, installed } = findings
      Object.assign(report, { state, ranking, release, attempts, installed })
      Object.assign(report, { ...(hardware && { hardware }), ...(chosen && { chosen }) })
    }
  } finally {
    progress.clear()
  }
  report.problems.push(...findProblems(report))
  return report
}

/** The configuration with another root for the system files. @throws CommandFailure if it is not a folder */
function withSysroot(config: LoadedConfig, { cwd }: CommandContext, sysroot: string | undefined): LoadedConfig {
  if (sysroot === undefined) return config
  const root = resolve(cwd, sysroot)
  if (!statSync(root, { throwIfNoEntry: false })?.isDirectory()) {
    throw new CommandFailure(EXIT.usage, `${root} is not a folder. Give --sysroot a folder with the files of a system.`)
  }
  const hardware = { ...config.sections.hardware, sysroot: root }
  return { ...config, sections: { ...config.sections, hardware } }
}

async function existing(directory: string): Promise<string> {
  for (let path = directory; ; path = dirname(path)) {
    try {
      await access(path)
      return path
    } catch (error) {
      if (!isSystemError(error, 'ENOENT', 'ENOTDIR') || dirname(path) === path) throw error
    }
  }
}

/** @throws Error with advice if the data directory is not writable */
async function checkWritable(directory: string): Promise<void> {
  try {
    await access(await existing(directory), constants.W_OK)
  } catch (error) {
    const advice = 'Make it writable, or choose another one with CORRAL_HOME.'
    throw new Error(`The data directory ${directory} is not writable: ${errorMessage(error)} ${advice}`, {
      cause: error
    })
  }
}

/**
 * Builds of a running server, once it has settled on one.
 * @param optional returns undefined if no server can be reached
 * @throws CommandFailure if a server that should answer does not
 */
async function reportOfServer(
  context: CommandContext,
  optional: boolean,
  build: boolean,
  progress: Progress
): Promise<RuntimesReport | undefined> {
  const poll = async ({ client }: ServerConnection) => {
    for (;;) {
      const timeout = abortAfter(ANSWER_TIMEOUT_MS)
      const report = await client.json<RuntimesReport>('GET', '/api/runtimes', undefined, timeout)
      if (!Array.isArray(report.ranking)) {
        throw failure(`The server at ${client.address} has a different version of corral. Update one of them.`)
      }
      if (!build || report.state !== 'searching') return report
      if (report.progress) progress.status(progressText(report.progress))
      await sleep(POLL_INTERVAL_MS, undefined, { signal: interruption() })
    }
  }
  const report = withServer(context, 'fail', poll)
  return await (optional ? unlessNoServer(report) : report)
}

/**
 * Examines in this process, and installs a build if requested. Builds can be shared, so the data directory is not
 * claimed and a server may be running on it.
 */
async function examineHere(
  context: CommandContext,
  config: LoadedConfig,
  build: boolean,
  progress: Progress
): Promise<RuntimesReport> {
  const signal = interruption()
  return await withLocalService(context, config, 'runtimes', async runtimes => {
    await runtimes.rank({ signal })
    const onProgress = (step: Parameters<typeof progressText>[0]) => progress.status(progressText(step))
    // The report contains the reason of a failed search.
    if (build) await runtimes.build({ signal, onProgress }).catch(() => signal.throwIfAborted())
    return runtimes.report()
  })
}

/** Worth reporting even when corral works, because a device is not used. */
const SERIOUS: readonly HardwareProblem['code'][] = [
  'driver_mismatch',
  'driver_not_loaded',
  'driver_too_old',
  'no_permission'
]

/** GPUs that can compute. A server's console GPU has no compute driver. */
function computingGpus({ gpus }: Hardware): Hardware['gpus'] {
  return gpus.filter(({ vendor, apis }) => vendor !== 'other' || apis.length > 0)
}

export function findProblems({ state, hardware, ranking, chosen, attempts }: DoctorReport): string[] {
  const problems: string[] = []
  if (state === 'failed') {
    const details = attempts.length > 0 ? '. The attempts below show why' : ''
    problems.push(`No llama.cpp build works on this machine${details}.`)
  }
  for (const { code, message, advice } of hardware?.problems ?? []) {
    if (SERIOUS.includes(code)) problems.push(advice ? `${message} ${advice}` : message)
  }
  const gpus = hardware ? computingGpus(hardware) : []
  const best = ranking.find(({ usable }) => usable)
  if (gpus.length > 0 && best?.kind === 'cpu' && problems.length === 0 && gpus.some(gpu => gpu.vendor !== 'qualcomm')) {
    problems.push(
      `This machine has a GPU (${gpus.map(({ name }) => name).join(', ')}), but no llama.cpp build can use it ` +
        'at the moment, so models run on the processor. The list of builds shows what is missing.'
    )
  }
  problems.push(...(chosen?.warnings ?? []))
  if (chosen?.kind === 'cpu' && !chosen.warnings?.length && best && best.kind !== 'cpu') {
    problems.push(
      `Models run on the processor although ${best.title} could be used. The attempts below show why it is not used.`
    )
  }
  return problems
}
