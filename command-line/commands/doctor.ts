import { statSync } from 'node:fs'
import { access } from 'node:fs/promises'
import { arch, release, type } from 'node:os'
import { dirname, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import picocolors from 'picocolors'
import { ConfigError } from '../../core/config/config-error.ts'
import type { LoadedConfig } from '../../core/config/load.ts'
import type { Attempt, InstalledBuild, RankedCandidate, RuntimesReport } from '../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../core/contracts/hardware.ts'
import { progressText } from '../../core/contracts/progress.ts'
import { errorMessage, isSystemError } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { checkDataDirectory, readOwner } from '../../core/system/data-directory.ts'
import { freeSpace } from '../../core/system/disk-space.ts'
import { version } from '../../core/system/package-info.ts'
import { missingPrograms } from '../../runtimes/remote/programs/program-settings.ts'
import { EXIT, failure, interruption, misuse } from '../command-failure.ts'
import { type CommandContext, type Options, openConfig } from '../context.ts'
import type { DoctorReport } from '../doctor-schema.ts'
import type { PsReply } from '../live-view.ts'
import { withLocalService } from '../local-service.ts'
import { formatPairs, outputWidth, printable, printResult, wrapLines } from '../output.ts'
import { formatPool, type Progress, showProgress } from '../progress-display.ts'
import { planAddresses, toServerSettings } from '../server-address.ts'
import { type ServerConnection, unlessNoServer, withServer } from '../server-connection.ts'

const POLL_INTERVAL_MS = 500
/** Time limit for the server, which first detects the hardware and lists the releases. */
const ANSWER_TIMEOUT_MS = 45_000

type DoctorFlags = Options<'json', 'sysroot'> & { build: boolean }

export async function doctor(context: CommandContext, flags: DoctorFlags): Promise<void> {
  const report = await examine(context, flags)
  printResult(flags.json, report, () => formatDoctor(report))
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
  await examined(() => checkDataDirectory(config.paths))
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
      const optional = { ...(hardware && { hardware }), ...(chosen && { chosen }) }
      const memory = 'memory' in findings && { memory: findings.memory }
      Object.assign(report, { state, ranking, release, attempts, installed, ...optional, ...memory })
    }
  } finally {
    progress.clear()
  }
  const missing = await examined(async () => missingPrograms(config.sections.engines, config.core.models))
  report.problems.push(...(missing ?? []), ...findProblems(report))
  return report
}

/** The configuration with another root for the system files. @throws CommandFailure if it is not a folder */
function withSysroot(config: LoadedConfig, { cwd }: CommandContext, sysroot: string | undefined): LoadedConfig {
  if (sysroot === undefined) return config
  const root = resolve(cwd, sysroot)
  if (!statSync(root, { throwIfNoEntry: false })?.isDirectory()) {
    throw misuse(`${root} is not a folder. Give --sysroot a folder with the files of a system.`)
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

/**
 * Builds of a running server, once it has settled on one.
 * @param optional returns undefined if no server can be reached
 * @throws CommandFailure if a server that should answer does not
 */
async function reportOfServer(context: CommandContext, optional: boolean, build: boolean, progress: Progress) {
  const poll = async ({ client }: ServerConnection) => {
    for (;;) {
      const timeout = abortAfter(ANSWER_TIMEOUT_MS)
      const report = await client.json<RuntimesReport>('GET', '/api/runtimes', undefined, timeout)
      if (!Array.isArray(report.ranking)) {
        throw failure(`The server at ${client.address} has a different version of corral. Update one of them.`)
      }
      if (!build || report.state !== 'searching') {
        const { memory } = await client.json<PsReply>('GET', '/api/ps', undefined, timeout)
        return { ...report, ...(memory && { memory }) }
      }
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
async function examineHere(context: CommandContext, config: LoadedConfig, build: boolean, progress: Progress) {
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
const SERIOUS: readonly string[] = ['driver_mismatch', 'driver_not_loaded', 'driver_too_old', 'no_permission']

export function findProblems({ state, hardware, ranking, chosen, attempts }: DoctorReport): string[] {
  const problems: string[] = []
  if (state === 'failed') {
    const details = attempts.length > 0 ? '. The attempts below show why' : ''
    problems.push(`No llama.cpp build works on this machine${details}.`)
  }
  for (const { code, message, advice } of hardware?.problems ?? []) {
    if (SERIOUS.includes(code)) problems.push(advice ? `${message} ${advice}` : message)
  }
  // GPUs that can compute. A server's console GPU has no compute driver.
  const gpus = hardware?.gpus.filter(({ vendor, apis }) => vendor !== 'other' || apis.length > 0) ?? []
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

/** By default picocolors also colours output to files and other programs if CI is set. */
const pc = picocolors.createColors(process.stdout.isTTY === true && picocolors.isColorSupported)

/** Formats the findings. Problems come last, because the end of the output stays visible on a terminal. */
export function formatDoctor(findings: DoctorReport, columns = outputWidth()): string {
  // Device names and program output are untrusted.
  const report: DoctorReport = JSON.parse(JSON.stringify(findings), (_, value) =>
    typeof value === 'string' ? printable(value) : value
  )
  const { config, hardware, ranking, attempts, installed, problems } = report
  const system = Object.entries({ corral: `${report.corral} on Node.js ${report.node}`, system: report.platform })
  const sections = [section('System', formatPairs(system)), section('Configuration', formatConfig(config))]
  if (report.data) sections.push(section('Data', formatData(report)))
  if (hardware) sections.push(section('Hardware', ...formatHardware(hardware)))
  if (report.memory) sections.push(section('Memory for models', ...report.memory.map(pool => `  ${formatPool(pool)}`)))
  if (ranking.length > 0) sections.push(section(rankingTitle(report), ...formatRanking(ranking)))
  if (report.state) sections.push(section('llama.cpp', formatChosen(report)))
  if (attempts.length > 0) sections.push(section('Attempts, in order', ...attempts.flatMap(formatAttempt)))
  if (installed.length > 0) sections.push(section('Installed builds', ...installed.map(formatInstalled)))
  if (problems.length > 0) {
    sections.push(section('Problems', ...problems.map(problem => `  ${pc.red('!')} ${pc.yellow(problem)}`)))
  }
  const wrong = problems.length + config.problems.length > 0
  const fine = report.state === 'ready' ? 'All is well.' : 'No problem so far.'
  sections.push(wrong ? pc.red('There are problems. See above.') : pc.green(fine))
  return wrapLines(sections.join('\n\n'), columns)
}

const section = (title: string, ...lines: string[]): string => [pc.bold(title), ...lines].join('\n')

function formatConfig({ file, problems }: DoctorReport['config']): string {
  return formatPairs([
    ['file', problems.length > 0 ? undefined : (file ?? 'none, so the defaults apply')],
    ...problems.map(({ where, message }): [string, string] => [where, message])
  ])
}

function formatData({ data, models }: DoctorReport): string {
  const { home, holder } = data!
  return formatPairs([
    ['directory', home],
    [
      'server',
      holder
        ? `process ${holder.pid} on ${holder.host}, ${holder.address}, corral ${holder.version}`
        : 'none is running'
    ],
    ['models', models && `${models.directory}, ${formatBytes(models.free)} free on its disk`]
  ])
}

function formatHardware({ cpu, memory, gpus, problems, probes, glibc, platform, arch }: Hardware): string[] {
  const cores = cpu.cores === undefined ? '' : `${cpu.cores} cores, `
  const features = cpu.features.length > 0 ? `, ${cpu.features.join(' ')}` : ''
  const limit = memory.limit === undefined ? '' : `, limited to ${formatBytes(memory.limit)}`
  const silent = probes.filter(({ outcome }) => outcome !== 'ok' && outcome !== 'absent')
  const devices = gpus.map((gpu): [string, string] => [gpu.id, formatGpu(gpu)])
  return [
    formatPairs([
      ['system', `${platform} ${arch}${glibc === undefined ? '' : `, glibc ${glibc}`}`],
      ['processor', `${cpu.model}, ${cores}${cpu.threads} threads${features}`],
      ['memory', memory.total > 0 ? `${formatUsed(memory.available, memory.total)}${limit}` : 'unknown'],
      ...(devices.length > 0 ? devices : [['GPU', 'none found'] as [string, string]])
    ]),
    ...problems.flatMap(({ message, advice }) => [`  ! ${message}`, ...(advice ? [`    → ${advice}`] : [])]),
    ...silent.map(
      ({ probe, outcome, detail }) => `  ? ${probe}: ${outcome.replace('_', ' ')}${detail ? ` (${detail})` : ''}`
    )
  ]
}

function formatUsed(free: number | undefined, total: number): string {
  return free === undefined ? formatBytes(total) : `${formatBytes(total - free)} used of ${formatBytes(total)}`
}

function formatGpu(gpu: Gpu): string {
  const { driver, apis, totalMemory } = gpu
  const facts = [
    gpu.type !== 'unknown' && gpu.type,
    gpu.architecture,
    totalMemory === undefined ? gpu.unifiedMemory && 'uses system memory' : formatUsed(gpu.freeMemory, totalMemory),
    driver?.version && `driver ${driver.version}`,
    driver?.cuda && `CUDA up to ${driver.cuda}`,
    apis.length > 0 && `reached through ${apis.join(', ')}`,
    !gpu.usable && pc.red('not usable at the moment')
  ]
  return `${gpu.name}: ${facts.filter(Boolean).join(', ')}`
}

function rankingTitle({ release }: DoctorReport): string {
  const list = release?.list === 'live' ? '' : ", from corral's offline list"
  const from = release ? ` (release ${release.tag}${list})` : ''
  return `Kinds of llama.cpp builds for this machine, best first${from}`
}

function formatRanking(ranking: RankedCandidate[]): string[] {
  const width = Math.max(...ranking.map(({ title }) => title.length))
  const [possible, impossible] = [ranking.filter(({ score }) => score > 0), ranking.filter(({ score }) => score === 0)]
  return [
    ...possible.flatMap(({ title, score, usable, reasons, missing, assets }, index) => [
      `  ${index + 1}. ${title.padEnd(width)}  ${usable ? `score ${score}` : 'no build available'}`,
      ...reasons.map(reason => `     ${reason}`),
      ...formatMissing(missing),
      ...assets.map(name => pc.dim(`     ${name}`))
    ]),
    ...impossible.flatMap(({ title, reasons, missing }) => [
      pc.dim(`  -  ${title.padEnd(width)}  ${reasons.join(' ')}`),
      ...formatMissing(missing)
    ])
  ]
}

function formatMissing(missing: RankedCandidate['missing']): string[] {
  return missing.flatMap(({ what, fix }) => [`     ! ${what}`, ...(fix ? [`       → ${fix}`] : [])])
}

const STATES: Record<NonNullable<DoctorReport['state']>, string> = {
  idle: 'not searched for yet',
  searching: 'being searched for or built',
  ready: 'ready',
  failed: 'none works'
}

function formatChosen({ state, chosen }: DoctorReport): string {
  const devices = chosen?.devices.map(({ id, description }) => `${id} ${description}`).join('; ')
  return formatPairs([
    ['state', STATES[state!]],
    ['build', chosen && `${chosen.id} (${chosen.runtime ?? chosen.kind}), from ${chosen.source}`],
    ['version', chosen?.version],
    ['server', chosen?.executables.server],
    ['origin', chosen?.origin],
    ['sha256', chosen?.digest],
    ['devices', chosen && (devices || 'processor only')]
  ])
}

function formatAttempt({ runtime, source, description, outcome, reasons }: Attempt, index: number): string[] {
  return [
    `  ${index + 1}. ${runtime ? `${runtime} from ${source}` : source}: ${outcome}. ${description}`,
    ...reasons.flatMap(reason => reason.split('\n')).map(reason => `     - ${reason}`)
  ]
}

function formatInstalled({ build, size, state, failure }: InstalledBuild): string {
  const facts = [state, build.version, size > 0 ? formatBytes(size) : build.directory, failure]
  return `  ${build.id}: ${facts.filter(Boolean).join(', ')}`
}
