import { statfs } from 'node:fs/promises'
import { arch, availableParallelism, cpus, release, totalmem, type } from 'node:os'
import { formatBytes } from '../bytes.ts'
import type { ConfigProblem } from '../config/problems.ts'
import { version } from '../package-info.ts'
import type { Attempt, RuntimesReport } from '../runtimes.ts'
import { formatPairs } from './table.ts'

/** What `corral doctor --json` prints. Sizes are bytes. */
export interface DoctorReport {
  corral: string
  node: string
  platform: string
  cpu: { model: string; threads: number }
  memory: { total: number; available: number }
  config: { file: string | null; problems: ConfigProblem[] }
  data?: { home: string; holder: { pid: number; host: string; address: string; version: string } | null }
  models?: { directory: string; free: number }
  engine?: RuntimesReport
  /** What keeps corral from working, in words; mistakes in the configuration are listed in `config`. */
  problems: string[]
}

/** Versions and hardware. */
export function thisMachine(): Pick<DoctorReport, 'corral' | 'node' | 'platform' | 'cpu' | 'memory'> {
  return {
    corral: version,
    node: process.version,
    platform: `${type()} ${release()} ${arch()}`,
    cpu: { model: cpus()[0]?.model.trim() || 'unknown', threads: availableParallelism() },
    // Both heed a container's limit, where Node can tell it; it gives a huge number where there is none.
    memory: {
      total: Math.min(totalmem(), process.constrainedMemory() || totalmem()),
      available: process.availableMemory()
    }
  }
}

/** The models' folder and the free space of its disk. */
export async function diskAndModels(directory: string): Promise<NonNullable<DoctorReport['models']>> {
  const { bavail, bsize } = await statfs(directory)
  return { directory, free: bavail * bsize }
}

/** The findings for people. */
export function formatDoctor(report: DoctorReport): string {
  const { corral, node, platform, cpu, memory, config, data, models, engine, problems } = report
  const sections = [
    `System\n${formatPairs([
      ['corral', `${corral} on Node.js ${node}`],
      ['system', platform],
      ['processor', `${cpu.model}, ${cpu.threads} threads`],
      ['memory', `${formatBytes(memory.available)} free of ${formatBytes(memory.total)}`]
    ])}`,
    `Configuration\n${formatPairs([
      ['file', config.problems.length > 0 ? undefined : (config.file ?? 'none; the defaults are in force')],
      ...config.problems.map(({ where, message }): [string, string] => [where, message])
    ])}`
  ]
  if (data) {
    const { holder } = data
    const server = holder && `process ${holder.pid} on ${holder.host}, ${holder.address}, corral ${holder.version}`
    sections.push(
      `Data\n${formatPairs([
        ['directory', data.home],
        ['server', server ?? 'none runs'],
        ['models', models && `${models.directory}, ${formatBytes(models.free)} free on its disk`]
      ])}`
    )
  }
  if (engine) sections.push(`llama.cpp\n${formatEngine(engine)}`)
  const all = problems.length + config.problems.length
  if (problems.length > 0) sections.push(`Problems\n${problems.map(problem => `  ${problem}`).join('\n')}`)
  const fine = engine?.state === 'ready' ? 'All is well.' : 'Nothing is wrong so far.'
  sections.push(all > 0 ? 'Something needs your help; see above.' : fine)
  return sections.join('\n\n')
}

const STATES: Record<RuntimesReport['state'], string> = {
  idle: 'not looked for yet',
  searching: 'being looked for or built now',
  ready: 'ready',
  failed: 'none works'
}

function formatEngine({ state, build, sources }: RuntimesReport): string {
  const lines = [
    formatPairs([
      ['state', STATES[state]],
      ['build', build && `${build.id} (${build.kind}), from ${build.source}`],
      ['version', build?.version],
      ['server', build?.executables.server],
      ['origin', build?.origin],
      ['sha256', build?.digest],
      [
        'devices',
        build && (build.devices.map(({ id, description }) => `${id} ${description}`).join('; ') || 'CPU only')
      ]
    ])
  ]
  if (sources.length > 0) {
    lines.push('  where builds come from, in this order:')
    lines.push(...sources.flatMap(formatSource))
  }
  return lines.join('\n')
}

function formatSource({ source, description, outcome, reasons }: Attempt, index: number): string[] {
  return [
    `  ${index + 1}. ${source}: ${outcome}. ${description}`,
    ...reasons.flatMap(reason => reason.split('\n')).map(reason => `     - ${reason}`)
  ]
}
