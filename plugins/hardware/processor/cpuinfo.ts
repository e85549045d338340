import type { Hardware } from '../../../core/contracts/hardware.ts'
import { known } from '../findings.ts'
import { armProcessorName } from './arm-parts.ts'
import { featuresOfFlags } from './features.ts'

type Processor = Partial<Hardware['cpu']>

const countOf = (text: string | undefined) =>
  text !== undefined && /^[1-9]\d{0,4}$/.test(text) ? Number(text) : undefined

/** `key : value` lines; the first value of each key counts. */
function fieldsOf(lines: readonly string[]): Map<string, string> {
  const fields = new Map<string, string>()
  for (const line of lines) {
    const match = /^([^:]+?)\s*:\s*(.*?)\s*$/.exec(line)
    if (match && !fields.has(match[1]!.toLowerCase())) fields.set(match[1]!.toLowerCase(), match[2]!)
  }
  return fields
}

/**
 * What /proc/cpuinfo tells (https://docs.kernel.org/arch/x86/cpuinfo.html; on ARM it has other keys). Undefined when
 * there is no processor in it.
 */
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
  return known({
    model: first.get('model name') ?? armProcessorName(first.get('cpu implementer'), first.get('cpu part')),
    cores: first.has('core id') ? Math.max(cores.size, (perSocket ?? 0) * sockets.size) : undefined,
    // In a container some of the blocks may be missing; siblings counts them all.
    threads: Math.max(blocks.length, (siblings ?? 0) * sockets.size),
    features: featuresOfFlags(first.get('flags') ?? first.get('features') ?? '')
  })
}

/** Keys of lscpu, which another line that looks like one ends. */
const LSCPU_KEY = /^\s*[A-Z][A-Za-z0-9()/ -]*?:\s/

/**
 * What `lscpu` tells. A terminal may have wrapped its lines in the middle of a word: what follows without a key belongs
 * to the line above, without a blank.
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
  return known({
    model: model === '-' ? undefined : model,
    cores: perSocket === undefined ? undefined : perSocket * sockets,
    threads: countOf(fields.get('cpu(s)')),
    features: featuresOfFlags(flags ?? '')
  })
}
