import type { ProbeReport } from '../../core/contracts/hardware.ts'
import { type Findings, ProbeFailure } from './findings.ts'
import type { Machine } from './inspected-machine.ts'

/** A source of information about a machine: a tool, or files of the system. */
export interface Probe {
  /** Name in the report, such as `nvidia-smi`. */
  name: string
  /** The platforms that have it; all if absent. */
  platforms?: readonly string[]
  /** @throws ProbeFailure if it is absent or reports nothing usable */
  find(machine: Machine): Promise<Findings>
}

/** Maximum length of a report's detail in characters: a broken program may print a lot. */
const DETAIL_LENGTH = 200

const oneLine = (text: string) => {
  const line = text.replace(/\s+/g, ' ').trim()
  return line.length > DETAIL_LENGTH ? `${line.slice(0, DETAIL_LENGTH)}…` : line
}

/**
 * Runs a probe with a time limit in milliseconds. Never rejects and never takes longer: a hung driver can block even the
 * reading of a file for ever.
 */
export async function runProbe(
  probe: Probe,
  machine: Machine,
  limit: number
): Promise<{ report: ProbeReport; findings: Findings }> {
  const began = performance.now()
  const result = (outcome: ProbeReport['outcome'], findings: Findings, detail?: string) => ({
    findings,
    report: {
      probe: probe.name,
      outcome,
      ...(detail === undefined || detail === '' ? {} : { detail: oneLine(detail) }),
      duration: Math.round(performance.now() - began)
    }
  })
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new ProbeFailure('timed_out', `no answer within ${limit / 1000} s`)), limit)
  })
  try {
    const findings = await Promise.race([probe.find(machine), timeout])
    return result('ok', findings, findings.detail)
  } catch (error) {
    if (error instanceof ProbeFailure) return result(error.outcome, error.findings, error.message)
    return result('failed', {}, error instanceof Error ? error.message : String(error))
  } finally {
    clearTimeout(timer)
  }
}
