import { setTimeout as sleep } from 'node:timers/promises'
import type { Gpu, Hardware, HardwareProblem, ProbeReport } from '../../../core/contracts/hardware.ts'

/* Defines probes and their findings, and the helpers that all parsers share. */

/** The machine under inspection: this one, or a recording of another. */
export interface Machine {
  /** Prefix of all system files; empty for this machine. */
  readonly root: string
  readonly platform: string
  readonly arch: string
  readonly files: SystemFiles
  /** Runs a program from the PATH and returns its output, whatever its exit code. @throws ProbeFailure */
  run(program: string, args: readonly string[]): Promise<ProgramOutput>
}

export interface ProgramOutput {
  /** Both streams, standard output first. */
  text: string
  stdout: string
  /** Why the program failed. Many programs print an explanation and exit with an error. */
  failure?: string
}

/** The files of a machine, by their absolute paths on it. Missing or unreadable files are undefined or empty. */
export interface SystemFiles {
  text(path: string): Promise<string | undefined>
  /** Names in a folder, in natural order: `card2` before `card10`. */
  names(folder: string): Promise<string[]>
}

/** A source of information about a machine: a tool, or files of the system. */
export interface Probe {
  /** Name in the report, such as `nvidia-smi`. */
  name: string
  platforms?: readonly string[]
  /** @throws ProbeFailure if the source is absent or reports nothing usable */
  find(machine: Machine): Promise<Findings>
}

export interface Findings {
  gpus?: Sighting[]
  problems?: HardwareProblem[]
  cpu?: Partial<Hardware['cpu']>
  memory?: Partial<Hardware['memory']>
  libraries?: string[]
  glibc?: string
  /** Vendors with an installed Vulkan driver, whether or not it works. */
  vulkanDrivers?: Gpu['vendor'][]
  /** Set if this user may not open the devices of AMD and Intel GPUs. */
  noDeviceAccess?: boolean
  detail?: string
}

/** A GPU as one source reports it. Properties that the source does not report are absent. */
export interface Sighting extends Partial<Omit<Gpu, 'id' | 'vendor' | 'apis'>> {
  vendor: Gpu['vendor']
  api?: Gpu['apis'][number]
}

/** Explains why a probe reported nothing, or less than it could. */
export class ProbeFailure extends Error {
  override readonly name = 'ProbeFailure'
  readonly outcome: Exclude<ProbeReport['outcome'], 'ok'>
  readonly findings: Findings

  constructor(outcome: Exclude<ProbeReport['outcome'], 'ok'>, detail: string, findings: Findings = {}) {
    super(detail)
    this.outcome = outcome
    this.findings = findings
  }
}

/** Makes a probe that runs one program. @param parse returns undefined for standard output that it cannot read */
export function programProbe(
  name: string,
  platforms: readonly string[],
  [program, ...args]: [string, ...string[]],
  parse: (stdout: string) => Findings | Sighting[] | undefined
): Probe {
  return {
    name,
    platforms,
    async find(machine) {
      const { stdout, text, failure } = await machine.run(program, args)
      const parsed = parse(stdout)
      const findings = Array.isArray(parsed) ? { gpus: parsed } : parsed
      if (findings && !(failure && findings.gpus?.length === 0)) return findings
      if (failure) throw new ProbeFailure('failed', `${failure} ${lastLine(text)}`)
      throw new ProbeFailure('unreadable', `unknown output of ${program}: ${lastLine(text)}`)
    }
  }
}

const lastLine = (text: string) => text.trim().split('\n').at(-1) ?? ''

/** Returns the output of a program that a probe can do without, or an empty string if it is absent or fails. */
export async function optionalOutput(machine: Machine, program: string, ...args: string[]): Promise<string> {
  try {
    return (await machine.run(program, args)).text
  } catch (error) {
    if (error instanceof ProbeFailure) return ''
    throw error
  }
}

/** Characters. A broken program may print a lot. */
const DETAIL_LENGTH = 200

/** Runs a probe for at most `limit` milliseconds, even if a hung driver blocks the reading of a file. Never rejects. */
export async function runProbe(
  probe: Probe,
  machine: Machine,
  limit: number
): Promise<{ report: ProbeReport; findings: Findings }> {
  const began = performance.now()
  const result = (outcome: ProbeReport['outcome'], findings: Findings, text = '') => {
    const line = text.replace(/\s+/g, ' ').trim()
    const detail = line.length > DETAIL_LENGTH ? `${line.slice(0, DETAIL_LENGTH)}…` : line
    const duration = Math.round(performance.now() - began)
    return { findings, report: { probe: probe.name, outcome, ...(detail && { detail }), duration } }
  }
  try {
    const findings = await Promise.race([probe.find(machine), timeLimit(limit, probe.name)])
    return result('ok', findings, findings.detail)
  } catch (error) {
    if (error instanceof ProbeFailure) return result(error.outcome, error.findings, error.message)
    return result('failed', {}, error instanceof Error ? error.message : String(error))
  }
}

/** Rejects after `limit` milliseconds, for use in a race. @throws ProbeFailure */
export async function timeLimit(limit: number, what: string): Promise<never> {
  await sleep(limit, undefined, { ref: false })
  throw new ProbeFailure('timed_out', `${what} did not answer within ${limit / 1000} s`)
}

/** Drops undefined values, so that unknown properties are absent. */
export function defined<Values extends object>(
  values: Values
): { [Key in keyof Values]: Exclude<Values[Key], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as never
}

export const sighting = (values: Sighting): Sighting => defined(values)

/** Returns the value in a line `key: value` or `key=value`, if it is not empty. @param key regular expression */
export function getField(text: string, key: string): string | undefined {
  return new RegExp(`^[ \\t]*${key}[ \\t]*[:=][ \\t]*(\\S.*?)\\s*$`, 'm').exec(text)?.[1]
}

/** No device has this much memory. A larger value is wrong. */
const MAX_BYTES = 2 ** 46

/** Converts a number or numeric text to bytes. Returns undefined for 0, implausibly large values and other text. */
export function toBytes(value: unknown, unit = 1): number | undefined {
  const number =
    typeof value === 'number' ? value : /^\s*\d{1,18}(\.\d+)?\s*$/.test(String(value)) ? Number(value) : NaN
  const bytes = Math.round(number * unit)
  return bytes > 0 && bytes <= MAX_BYTES ? bytes : undefined
}

/** Computes free memory from the figures of one source. Returns undefined if they contradict each other. */
export function toFreeMemory(total: number | undefined, used: number | undefined): number | undefined {
  return total === undefined || used === undefined || used > total ? undefined : total - used
}
