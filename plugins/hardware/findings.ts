import type { Gpu, Hardware, HardwareProblem, ProbeReport } from '../../core/contracts/hardware.ts'

/** A GPU as one source reports it; what the source does not report is absent. */
export interface Sighting {
  vendor: Gpu['vendor']
  name?: string
  type?: Gpu['type']
  pciId?: string
  pciBus?: string
  architecture?: string
  unifiedMemory?: boolean
  totalMemory?: number
  freeMemory?: number
  driver?: Gpu['driver']
  api?: Gpu['apis'][number]
  /** Absent if the source does not know. */
  usable?: boolean
}

/** What one source reports about a machine. */
export interface Findings {
  gpus?: Sighting[]
  problems?: HardwareProblem[]
  cpu?: Partial<Hardware['cpu']>
  memory?: Partial<Hardware['memory']>
  libraries?: string[]
  glibc?: string
  /** Vendors with an installed Vulkan driver, whether or not it works. */
  vulkanDrivers?: Gpu['vendor'][]
  /** True if this user lacks permission to open the devices of AMD and Intel GPUs. */
  noDeviceAccess?: boolean
  /** One line for `ProbeReport.detail`. */
  detail?: string
}

/** Why a probe reported nothing, or less than it could. */
export class ProbeFailure extends Error {
  override readonly name = 'ProbeFailure'
  readonly outcome: Exclude<ProbeReport['outcome'], 'ok'>
  /** What it reported nevertheless. */
  readonly findings: Findings

  constructor(outcome: Exclude<ProbeReport['outcome'], 'ok'>, detail: string, findings: Findings = {}) {
    super(detail)
    this.outcome = outcome
    this.findings = findings
  }
}

/** Drops undefined values, so that what is unknown is absent. */
export function defined<Values extends object>(
  values: Values
): { [Key in keyof Values]: Exclude<Values[Key], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as never
}

/** Parses JSON; undefined if it is invalid. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** No device has more memory; a larger value is wrong. */
const MOST_BYTES = 2 ** 46

/** Bytes from a number or numeric text in units of `unit`; undefined if it is no number, 0 or implausibly large. */
export function bytesOf(value: unknown, unit = 1): number | undefined {
  const number =
    typeof value === 'number' ? value : /^\s*\d{1,18}(\.\d+)?\s*$/.test(String(value)) ? Number(value) : NaN
  const bytes = Math.round(number * unit)
  return bytes > 0 && bytes <= MOST_BYTES ? bytes : undefined
}

/** Free memory from the figures of one source; undefined if they contradict each other. */
export function freeOf(total: number | undefined, used: number | undefined): number | undefined {
  return total === undefined || used === undefined || used > total ? undefined : total - used
}
