import type { Gpu, Hardware, HardwareProblem, ProbeReport } from '../../core/contracts/hardware.ts'

/** A GPU as one source tells of it; what the source does not tell is absent. */
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
  /** Absent where the source cannot tell. */
  usable?: boolean
}

/** What one source tells of a machine. */
export interface Findings {
  gpus?: Sighting[]
  problems?: HardwareProblem[]
  cpu?: Partial<Hardware['cpu']>
  memory?: Partial<Hardware['memory']>
  libraries?: string[]
  glibc?: string
  /** Vendors for which a Vulkan driver is installed; says nothing about whether it works. */
  vulkanDrivers?: Gpu['vendor'][]
  /** Whether this user may not open the devices of AMD and Intel GPUs. */
  noDeviceAccess?: boolean
  /** One line for the report. */
  detail?: string
}

/** Why a probe told nothing, or less than it could. */
export class ProbeFailure extends Error {
  override readonly name = 'ProbeFailure'
  readonly outcome: Exclude<ProbeReport['outcome'], 'ok'>
  /** What it told all the same. */
  readonly findings: Findings

  constructor(outcome: Exclude<ProbeReport['outcome'], 'ok'>, detail: string, findings: Findings = {}) {
    super(detail)
    this.outcome = outcome
    this.findings = findings
  }
}

/** The named values without the undefined ones: what is not known is absent. */
export function known<Values extends object>(
  values: Values
): { [Key in keyof Values]: Exclude<Values[Key], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as never
}

/** No memory of one device is larger; what tells more than this lies. */
const MOST_BYTES = 2 ** 46

/** Bytes from a number or its text in units of `unit`; undefined when it is none, 0 or beyond all reason. */
export function bytesOf(value: unknown, unit = 1): number | undefined {
  const number =
    typeof value === 'number' ? value : /^\s*\d{1,18}(\.\d+)?\s*$/.test(String(value)) ? Number(value) : NaN
  const bytes = Math.round(number * unit)
  return bytes > 0 && bytes <= MOST_BYTES ? bytes : undefined
}

/** Free memory by the numbers of one source; undefined when they contradict each other. */
export function freeOf(total: number | undefined, used: number | undefined): number | undefined {
  return total === undefined || used === undefined || used > total ? undefined : total - used
}
