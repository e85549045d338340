import type { ProbeReport } from '../../core/contracts/hardware.ts'
import { type Findings, ProbeFailure } from './findings.ts'
import type { Machine } from './inspected-machine.ts'

/** A source that tells something of a machine. */
export interface Probe {
  /** For the report, such as `nvidia-smi`. */
  name: string
  /** The platforms that have it; all where absent. */
  platforms?: readonly string[]
  /** @throws ProbeFailure when it is not there or tells nothing */
  find(machine: Machine): Promise<Findings>
}

/** Characters of a report's line: what a broken program prints may be long. */
const DETAIL_LENGTH = 200

const oneLine = (text: string) => {
  const line = text.replace(/\s+/g, ' ').trim()
  return line.length > DETAIL_LENGTH ? `${line.slice(0, DETAIL_LENGTH)}…` : line
}

/**
 * Asks a probe within a limit of time. Never rejects and never takes longer: a driver that hangs can hold even the
 * reading of a file for ever.
 * @param limit milliseconds
 */
export async function askProbe(
  probe: Probe,
  machine: Machine,
  limit: number
): Promise<{ report: ProbeReport; findings: Findings }> {
  const began = performance.now()
  const answer = (outcome: ProbeReport['outcome'], findings: Findings, detail?: string) => ({
    findings,
    report: {
      probe: probe.name,
      outcome,
      ...(detail === undefined || detail === '' ? {} : { detail: oneLine(detail) }),
      duration: Math.round(performance.now() - began)
    }
  })
  let timer: NodeJS.Timeout | undefined
  const tooLong = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new ProbeFailure('timed_out', `no answer within ${limit / 1000} s`)), limit)
  })
  try {
    const findings = await Promise.race([probe.find(machine), tooLong])
    return answer('ok', findings, findings.detail)
  } catch (error) {
    if (error instanceof ProbeFailure) return answer(error.outcome, error.findings, error.message)
    return answer('failed', {}, error instanceof Error ? error.message : String(error))
  } finally {
    clearTimeout(timer)
  }
}
