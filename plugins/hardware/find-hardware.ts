import type { Hardware } from '../../core/contracts/hardware.ts'
import { type Answer, assembleHardware } from './assemble.ts'
import type { Machine } from './machine.ts'
import { askProbe } from './probe.ts'
import { PROBES } from './probes.ts'
import { ownProcessor } from './processor/processor.ts'

/**
 * Asks all sources of a machine at once, and makes one record of what they tell. Never rejects.
 * @param limit milliseconds that each source has
 */
export async function findHardware(machine: Machine, limit: number): Promise<Hardware> {
  const asked = PROBES.filter(({ platforms }) => platforms?.includes(machine.platform) ?? true)
  const answers: Answer[] = await Promise.all(asked.map(probe => askProbe(probe, machine, limit)))
  // Where no source tells of the processor, Node knows the least.
  const own: Answer = { report: { probe: 'node', outcome: 'ok', duration: 0 }, findings: ownProcessor(machine) }
  const hardware = assembleHardware(machine, [...answers, own])
  return { ...hardware, probes: answers.map(({ report }) => report) }
}
