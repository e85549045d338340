import { formatBytes } from '../../core/system/bytes.ts'
import type { FailureCause } from './failure-causes.ts'

/** Facts of a failure for programs; only those that the log tells. */
export interface FailureDetails {
  /** What the memory was for. */
  stage?: 'weights' | 'kv_cache' | 'compute' | 'warmup' | 'projector'
  /** As llama-server names it, such as CUDA0. */
  device?: string
  /** Bytes that could not be had in one piece. */
  wanted?: number
}

/** How many lines after the decisive one still speak of it. */
const REACH = 8
const MIB = 2 ** 20

const STAGES: [NonNullable<FailureDetails['stage']>, RegExp][] = [
  ['projector', /clip_|mtmd|mmproj|CLIP model/],
  ['kv_cache', /kv[ _-]?cache|KV buffer|kv cache/i],
  ['compute', /graph_reserve|sched_reserve|gallocr_reserve|compute (?:pp |tg )?buffers?/],
  ['weights', /load_tensors|alloc_tensor_range|error loading model|unable to allocate/]
]

function stageOf(lines: readonly string[], index: number): FailureDetails['stage'] {
  const around = lines.slice(index, index + REACH)
  for (const [stage, pattern] of STAGES) if (around.some(line => pattern.test(line))) return stage
  const before = lines.slice(Math.max(0, index - REACH), index)
  if (before.some(line => /warming up/.test(line))) return 'warmup'
  if (before.some(line => /load_tensors/.test(line))) return 'weights'
  return undefined
}

const BUFFER = /allocate (\w+?\d*) buffer(?: of size (\d+))?/
const NUMBERED = /allocating ([\d.]+) MiB on device (\d+)/
const SIZES: [RegExp, number][] = [
  [/(?:allocation|buffer) of size (\d+)/, 1],
  [/allocate (\d+) bytes/i, 1],
  [/size = +([\d.]+) MiB/, MIB],
  [/attempted to allocate +([\d.]+) MB/, MIB]
]

function memoryFacts(lines: readonly string[], index: number): FailureDetails {
  const details: FailureDetails = {}
  const stage = stageOf(lines, index)
  if (stage !== undefined) details.stage = stage
  for (const line of lines.slice(index, index + 3)) {
    const buffer = BUFFER.exec(line)
    if (buffer && /\d$/.test(buffer[1]!)) details.device ??= buffer[1]!
    if (buffer?.[2]) details.wanted ??= Number(buffer[2])
    const numbered = NUMBERED.exec(line)
    if (numbered) details.wanted ??= Math.round(Number(numbered[1]) * MIB)
    for (const [pattern, unit] of SIZES) {
      const match = pattern.exec(line)
      if (match) details.wanted ??= Math.round(Number(match[1]) * unit)
    }
  }
  return details
}

const PURPOSES: Record<NonNullable<FailureDetails['stage']>, string> = {
  weights: 'for the weights',
  kv_cache: 'for the KV cache (num_ctx × num_parallel)',
  compute: 'for computing',
  warmup: 'at the first evaluation',
  projector: 'for the projector'
}

function memoryRemark({ wanted, stage, device }: FailureDetails): string | undefined {
  if (wanted === undefined && stage === undefined) return undefined
  const parts = [
    wanted === undefined ? 'What could not be had was' : `${formatBytes(wanted)} could not be had`,
    stage === undefined ? undefined : PURPOSES[stage],
    device === undefined ? undefined : `on ${device}`
  ]
  return `${parts.filter(part => part !== undefined).join(' ')}.`
}

/** The device that an error names by its number, as the list at the start describes it. */
function deviceAtFault(lines: readonly string[], index: number): string | undefined {
  const number = lines
    .slice(index, index + 4)
    .map(line => /current device: (\d+)/.exec(line)?.[1])
    .find(found => found !== undefined)
  const pattern =
    number === undefined ? /for GPU arch ?: ?(gfx\w+)/ : new RegExp(`Device ${number}: (.+?), (?:VMM|Wave)`)
  return lines.map(line => pattern.exec(line)?.[1]).find(found => found !== undefined)
}

/** What the lines around the decisive one add. */
export function factsAt(
  cause: FailureCause,
  lines: readonly string[],
  index: number
): { details: FailureDetails; remark?: string } {
  if (cause === 'out_of_gpu_memory' || cause === 'out_of_memory') {
    const details = memoryFacts(lines, index)
    return { details, remark: memoryRemark(details) }
  }
  if (cause === 'gpu_not_supported_by_build') {
    const device = deviceAtFault(lines, index)
    if (device === undefined) return { details: {} }
    const several = lines.filter(line => /^\s*(?:[EWID] )?Device \d+: /.test(line)).length > 1
    const remark = several
      ? `It is ${device}; leave that one out (--device) if the others are enough.`
      : `It is ${device}.`
    return { details: { device }, remark }
  }
  return { details: {} }
}
