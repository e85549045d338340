import type { Gpu, Hardware } from '../../../../core/contracts/hardware.ts'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../../../runtimes/llama-cpp/sources/release.ts'
import { readFixture } from '../../../support/fixture.ts'
import { type Given, gpu, INTEGRATED, machine, problem, UNKNOWN_SYSTEM } from './machines.ts'

interface Described {
  gpus?: (Given & { vendor: Gpu['vendor']; name: string; integrated?: true })[]
  machine?: Partial<Omit<Hardware, 'problems'>> & {
    unknown?: true
    problems?: Omit<Hardware['problems'][0], 'message'>[]
  }
}

function readMachine({ gpus = [], machine: given }: Described): Hardware {
  const { unknown, problems: [found] = [], ...more } = given ?? {}
  const cards = gpus.map(({ vendor, name, integrated, ...card }) => {
    return gpu(vendor, name, { ...(integrated && INTEGRATED), ...card })
  })
  const problems = found && problem(found.code, found.subject, found.advice)
  const known = Object.entries(more).map(([name, value]) => [name, value ?? undefined])
  return machine(cards, { ...(unknown && UNKNOWN_SYSTEM), ...Object.fromEntries(known), ...problems })
}

const { machines, missing } = readFixture<{
  machines: (Described & { what: string; order: string })[]
  missing: (Described & { runtime: string; what: string; fix?: string })[]
}>('ranked-machines.yaml')

/** Machines, and the kinds that can work on each, best first. */
export const CASES = machines.map(({ what, order, ...one }) => [what, readMachine(one), order] as const)

/** Patterns for a kind's missing requirement on a machine, and for the fix. */
export const MISSING = missing.map(one => ({ ...one, hardware: readMachine(one) }))

/** The archives of the bundled release. */
export const NAMES = BUNDLED_LISTING.names

/** Returns the names of the kinds that can work, best first. */
export const order = (hardware: Hardware, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names)
    .filter(({ usable }) => usable)
    .map(({ runtime }) => runtime)
    .join(' ')

/** Returns the candidate of one kind. */
export const candidate = (hardware: Hardware, runtime: string, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names).find(one => one.runtime === runtime)!
