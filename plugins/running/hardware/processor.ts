import { cpus } from 'node:os'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { defined, type Findings, type Machine, optionalOutput, type Probe, ProbeFailure } from './probe.ts'
import FEATURES from './processor-features.json' with { type: 'json' }

/* The processor, and the instruction sets that llama.cpp has code for (GGML_CPU_ALL_VARIANTS in its CMakeLists.txt). */

/** Features of x86 processors with their names in /proc/cpuinfo, and of ARM processors with those in macOS's `sysctl`. */
const { x86: X86, arm: ARM } = FEATURES

export function featuresFromFlags(flags: string): string[] {
  const present = new Set(flags.toLowerCase().split(/\s+/))
  const x86 = Object.entries(X86).filter(([, name]) => present.has(name))
  return [...x86.map(([feature]) => feature), ...Object.keys(ARM).filter(feature => present.has(feature))]
}

export function featuresFromSysctl(values: ReadonlyMap<string, string>): string[] {
  // Intel Macs list `SSE4.2 AVX1.0 F16C FMA` and `AVX2 BMI2`.
  const flags = `${values.get('machdep.cpu.features')} ${values.get('machdep.cpu.leaf7_features')}`
    .toLowerCase()
    .replace('sse4.2', 'sse4_2')
    .replace('avx1.0', 'avx')
  const isSet = (name: string) =>
    ['hw.optional.arm', 'hw.optional'].some(prefix => values.get(`${prefix}.${name}`) === '1')
  const arm = Object.entries(ARM).filter(([, name]) => isSet(name))
  return [...featuresFromFlags(flags), ...arm.map(([feature]) => feature)]
}

type Processor = Partial<Hardware['cpu']>

const getCount = (text: string | undefined) =>
  text !== undefined && /^[1-9]\d{0,4}$/.test(text) ? Number(text) : undefined

/** Parses `key : value` lines. The first value of each key wins. */
function parseFields(text: string): Map<string, string> {
  const pairs = text.split('\n').map(line => [line, line.indexOf(':')] as const)
  const fields = pairs.filter(([, colon]) => colon > 0).reverse()
  return new Map(fields.map(([line, at]) => [line.slice(0, at).trim().toLowerCase(), line.slice(at + 1).trim()]))
}

/** Parses /proc/cpuinfo, which has other keys and no names on ARM. Returns undefined if it lists no processor. */
export function parseCpuinfo(text: string): Processor | undefined {
  const blocks = text
    .split(/\r?\n(?=processor\s*:)/)
    .filter(block => /^processor\s*:/.test(block))
    .map(parseFields)
  const first = blocks[0]
  if (!first) return undefined
  const sockets = new Set(blocks.map(block => block.get('physical id') ?? '0'))
  const cores = new Set(blocks.map(block => `${block.get('physical id') ?? '0'}/${block.get('core id')}`))
  const perSocket = getCount(first.get('cpu cores'))
  const siblings = getCount(first.get('siblings'))
  return defined({
    model: first.get('model name'),
    cores: first.has('core id') ? Math.max(cores.size, (perSocket ?? 0) * sockets.size) : undefined,
    // In a container some blocks may be missing, but `siblings` includes all threads.
    threads: Math.max(blocks.length, (siblings ?? 0) * sockets.size),
    features: featuresFromFlags(first.get('flags') ?? first.get('features') ?? '')
  })
}

/** A line of lscpu without a key: a terminal has wrapped the line above in the middle of a word. */
const WRAPPED = /\r?\n(?!\s*[A-Z][A-Za-z0-9()/ -]*?:\s)\s*/g

export function parseLscpu(text: string): Processor | undefined {
  const fields = parseFields(text.replace(WRAPPED, ''))
  const flags = fields.get('flags')
  const model = fields.get('model name')
  if (flags === undefined && model === undefined) return undefined
  const sockets = getCount(fields.get('socket(s)')) ?? 1
  const perSocket = getCount(fields.get('core(s) per socket'))
  return defined({
    model: model === '-' ? undefined : model,
    cores: perSocket === undefined ? undefined : perSocket * sockets,
    threads: getCount(fields.get('cpu(s)')),
    features: featuresFromFlags(flags ?? '')
  })
}

/** Reads /proc/cpuinfo, or lscpu if /proc/cpuinfo has no name (on ARM) or is missing from a recording. */
export const linuxCpu: Probe = {
  name: 'cpuinfo',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const cpu = parseCpuinfo((await machine.files.text('/proc/cpuinfo')) ?? '')
    if (cpu?.model !== undefined) return { cpu }
    const place = machine.root === '' ? [] : ['-s', machine.root]
    const listed = parseLscpu(await optionalOutput(machine, 'lscpu', ...place))
    if (!cpu && !listed) throw new ProbeFailure('absent', 'no processor in /proc/cpuinfo or lscpu')
    return { cpu: { ...listed, ...cpu } }
  }
}

/** Describes the processor as Node.js reports it, for platforms without a probe. Returns nothing for a recording. */
export function ownProcessor({ root }: Machine): Findings {
  const list = root === '' ? cpus() : []
  const model = list[0]?.model.trim()
  return list.length === 0 ? {} : { cpu: { threads: list.length, ...(model ? { model } : {}) } }
}
