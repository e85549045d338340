import { cpus } from 'node:os'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { defined, type Findings, ProbeFailure } from './findings.ts'
import type { Machine } from './inspected-machine.ts'
import type { Probe } from './probe.ts'

/*
 * The processor: its name, cores, and the instruction sets that llama.cpp has code for (GGML_CPU_ALL_VARIANTS in its
 * ggml/src/CMakeLists.txt).
 */

/** Features of x86 processors; their names in /proc/cpuinfo are the same but for those in `LINUX_NAMES`. */
const X86 = [
  ...['ssse3', 'sse42', 'avx', 'avx2', 'fma', 'f16c', 'bmi2', 'avx_vnni'],
  ...['avx512f', 'avx512bw', 'avx512cd', 'avx512dq', 'avx512vl', 'avx512_vbmi', 'avx512_vnni', 'avx512_bf16'],
  ...['amx_int8', 'amx_bf16']
]
const LINUX_NAMES: Record<string, string> = { sse42: 'sse4_2', avx512_vbmi: 'avx512vbmi' }
/** Their names in `sysctl` on Intel Macs, where different. */
const MAC_X86: Record<string, string> = { ssse3: 'supplementalsse3', sse42: 'sse4_2', avx: 'avx1_0', avx2: 'avx2_0' }

/** Features of ARM processors, as in /proc/cpuinfo → name in `sysctl` of macOS. */
const ARM: Record<string, string | undefined> = {
  asimd: 'AdvSIMD',
  asimddp: 'FEAT_DotProd',
  asimdhp: 'FEAT_FP16',
  bf16: 'FEAT_BF16',
  i8mm: 'FEAT_I8MM',
  sve: undefined,
  sve2: undefined,
  sme: 'FEAT_SME'
}

/** The features in the flags of /proc/cpuinfo. */
export function featuresOfFlags(flags: string): string[] {
  const present = new Set(flags.toLowerCase().split(/\s+/))
  return [...X86, ...Object.keys(ARM)].filter(feature => present.has(LINUX_NAMES[feature] ?? feature))
}

/** The features in the values of `sysctl` on a Mac. */
export function featuresOfSysctl(values: ReadonlyMap<string, string>): string[] {
  // On Intel Macs: `SSE4.2 AVX1.0 F16C FMA` and `AVX2 BMI2` in two lists, or single values.
  const single = X86.filter(feature => values.get(`hw.optional.${MAC_X86[feature] ?? feature}`) === '1')
  const flags = ['machdep.cpu.features', 'machdep.cpu.leaf7_features']
    .map(key => values.get(key) ?? '')
    .concat(single.map(feature => LINUX_NAMES[feature] ?? feature))
    .join(' ')
    .toLowerCase()
    .replace('sse4.2', 'sse4_2')
    .replace('avx1.0', 'avx')
  const arm = Object.keys(ARM).filter(feature =>
    ['hw.optional.arm', 'hw.optional'].some(prefix => values.get(`${prefix}.${ARM[feature]}`) === '1')
  )
  return [...featuresOfFlags(flags), ...arm]
}

/** Names of ARM processors by implementer and part number: /proc/cpuinfo has no names. */
const PARTS: Record<string, Record<string, string>> = {
  '0x41': {
    '0xd03': 'Cortex-A53',
    '0xd05': 'Cortex-A55',
    '0xd07': 'Cortex-A57',
    '0xd08': 'Cortex-A72',
    '0xd0b': 'Cortex-A76',
    '0xd0c': 'Neoverse N1',
    '0xd40': 'Neoverse V1',
    '0xd42': 'Cortex-A78AE',
    '0xd46': 'Cortex-A510',
    '0xd48': 'Cortex-X2',
    '0xd49': 'Neoverse N2',
    '0xd4f': 'Neoverse V2',
    '0xd81': 'Cortex-A720',
    '0xd82': 'Cortex-X4',
    '0xd84': 'Neoverse V3',
    '0xd85': 'Cortex-X925',
    '0xd87': 'Cortex-A725',
    '0xd8e': 'Neoverse N3'
  },
  '0x4e': { '0x004': 'NVIDIA Carmel' },
  '0x51': { '0x001': 'Qualcomm Oryon' },
  '0xc0': { '0xac3': 'Ampere-1', '0xac4': 'Ampere-1A' }
}

const IMPLEMENTERS: Record<string, string> = {
  '0x41': 'ARM',
  '0x48': 'HiSilicon',
  '0x4e': 'NVIDIA',
  '0x51': 'Qualcomm',
  '0x61': 'Apple',
  '0xc0': 'Ampere'
}

/** The name of an ARM processor; undefined if neither number is known. */
export function armProcessorName(implementer: string | undefined, part: string | undefined): string | undefined {
  if (implementer === undefined) return undefined
  const maker = IMPLEMENTERS[implementer.toLowerCase()]
  const name = PARTS[implementer.toLowerCase()]?.[part?.toLowerCase() ?? '']
  return name ?? (maker === undefined ? undefined : `${maker} processor`)
}

type Processor = Partial<Hardware['cpu']>

const countOf = (text: string | undefined) =>
  text !== undefined && /^[1-9]\d{0,4}$/.test(text) ? Number(text) : undefined

/** Parses `key : value` lines; the first value of each key counts. */
function fieldsOf(lines: readonly string[]): Map<string, string> {
  const fields = new Map<string, string>()
  for (const line of lines) {
    const match = /^([^:]+?)\s*:\s*(.*?)\s*$/.exec(line)
    if (match && !fields.has(match[1]!.toLowerCase())) fields.set(match[1]!.toLowerCase(), match[2]!)
  }
  return fields
}

/** Parses /proc/cpuinfo, which has other keys on ARM. Undefined without any processor. */
export function parseCpuinfo(text: string): Processor | undefined {
  const blocks = text
    .split(/\r?\n(?=processor\s*:)/)
    .filter(block => /^processor\s*:/.test(block))
    .map(block => fieldsOf(block.split(/\r?\n/)))
  const first = blocks[0]
  if (!first) return undefined
  const sockets = new Set(blocks.map(block => block.get('physical id') ?? '0'))
  const cores = new Set(blocks.map(block => `${block.get('physical id') ?? '0'}/${block.get('core id')}`))
  const perSocket = countOf(first.get('cpu cores'))
  const siblings = countOf(first.get('siblings'))
  return defined({
    model: first.get('model name') ?? armProcessorName(first.get('cpu implementer'), first.get('cpu part')),
    cores: first.has('core id') ? Math.max(cores.size, (perSocket ?? 0) * sockets.size) : undefined,
    // In a container some blocks may be missing; siblings counts them all.
    threads: Math.max(blocks.length, (siblings ?? 0) * sockets.size),
    features: featuresOfFlags(first.get('flags') ?? first.get('features') ?? '')
  })
}

/** A line of lscpu that starts with a key. */
const LSCPU_KEY = /^\s*[A-Z][A-Za-z0-9()/ -]*?:\s/

/**
 * Parses `lscpu`. A terminal may have wrapped its lines in the middle of a word: a line without a key continues the line
 * above.
 */
export function parseLscpu(text: string): Processor | undefined {
  const lines: string[] = []
  for (const line of text.split(/\r?\n/)) {
    if (LSCPU_KEY.test(line) || lines.length === 0) lines.push(line)
    else lines[lines.length - 1] += line.replace(/^\s+/, '')
  }
  const fields = fieldsOf(lines.map(line => line.trim()))
  const flags = fields.get('flags')
  const model = fields.get('model name')
  if (flags === undefined && model === undefined) return undefined
  const sockets = countOf(fields.get('socket(s)')) ?? 1
  const perSocket = countOf(fields.get('core(s) per socket'))
  return defined({
    model: model === '-' ? undefined : model,
    cores: perSocket === undefined ? undefined : perSocket * sockets,
    threads: countOf(fields.get('cpu(s)')),
    features: featuresOfFlags(flags ?? '')
  })
}

/** /proc/cpuinfo; lscpu if it has no name, as on ARM, or is missing from a recording. */
export const linuxCpu: Probe = {
  name: 'cpuinfo',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const cpu = parseCpuinfo((await machine.files.text('/proc/cpuinfo')) ?? '')
    if (cpu?.model !== undefined) return { cpu }
    const place = machine.root === '' ? [] : ['-s', machine.root]
    const listed = parseLscpu(
      await machine.run('lscpu', place).then(
        ({ stdout }) => stdout,
        () => ''
      )
    )
    if (!cpu && !listed) throw new ProbeFailure('absent', 'no processor in /proc/cpuinfo or lscpu')
    return { cpu: { ...listed, ...cpu } }
  }
}

/** The processor as Node.js reports it, for platforms without a probe. Nothing for a recording. */
export function ownProcessor({ root }: Machine): Findings {
  const list = root === '' ? cpus() : []
  const model = list[0]?.model.trim()
  return list.length === 0 ? {} : { cpu: { threads: list.length, ...(model ? { model } : {}) } }
}
