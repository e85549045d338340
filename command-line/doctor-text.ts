import picocolors from 'picocolors'
import type { Attempt, InstalledBuild, RankedCandidate } from '../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../core/contracts/hardware.ts'
import { formatBytes } from '../core/system/bytes.ts'
import type { DoctorReport } from './doctor-schema.ts'
import { formatPairs, outputWidth, printable, wrapLines } from './output.ts'

/** By default picocolors also colours output to files and other programs if CI is set. */
const pc = picocolors.createColors(process.stdout.isTTY === true && picocolors.isColorSupported)

/** Formats the findings. Problems come last, because the end of the output stays visible on a terminal. */
export function formatDoctor(findings: DoctorReport, columns = outputWidth()): string {
  const report = withoutControls(findings)
  const { config, hardware, ranking, attempts, installed, problems } = report
  const sections = [section('System', formatSystem(report)), section('Configuration', formatConfig(config))]
  if (report.data) sections.push(section('Data', formatData(report)))
  if (hardware) sections.push(section('Hardware', ...formatHardware(hardware)))
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

/** Removes control characters, because device names and program output are untrusted. */
function withoutControls(report: DoctorReport): DoctorReport {
  return JSON.parse(JSON.stringify(report), (_, value) => (typeof value === 'string' ? printable(value) : value))
}

function formatSystem({ corral, node, platform }: DoctorReport): string {
  return formatPairs(Object.entries({ corral: `${corral} on Node.js ${node}`, system: platform }))
}

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
      ['memory', memory.total > 0 ? `${formatFree(memory.available, memory.total)}${limit}` : 'unknown'],
      ...(devices.length > 0 ? devices : [['GPU', 'none found'] as [string, string]])
    ]),
    ...problems.flatMap(({ message, advice }) => [`  ! ${message}`, ...(advice ? [`    → ${advice}`] : [])]),
    ...silent.map(
      ({ probe, outcome, detail }) => `  ? ${probe}: ${outcome.replace('_', ' ')}${detail ? ` (${detail})` : ''}`
    )
  ]
}

function formatFree(free: number | undefined, total: number): string {
  return free === undefined ? formatBytes(total) : `${formatBytes(free)} free of ${formatBytes(total)}`
}

function formatGpu(gpu: Gpu): string {
  const { driver, apis, totalMemory } = gpu
  const facts = [
    gpu.type !== 'unknown' && gpu.type,
    gpu.architecture,
    totalMemory === undefined ? gpu.unifiedMemory && 'uses system memory' : formatFree(gpu.freeMemory, totalMemory),
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
