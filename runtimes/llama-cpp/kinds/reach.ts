import type { Fit } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'

/*
 * What all kinds of GPU builds are judged by: how much of the machine's graphics memory they reach, and what is the
 * matter with cards that they would be for.
 */

/** What a kind of build loses for a card that it leaves idle, and for the share of memory that lies on such cards. */
const PENALTY_FOR_IDLE_CARD = 6
const PENALTY_FOR_IDLE_MEMORY = 50
/** Below what the processor alone scores: not worth it, but possible. */
const LEAST = 1

/**
 * The GPUs that count: those in working order, without the processor's own one where a card stands beside it, and without
 * what only shows a server's console.
 */
export function relevantGpus({ gpus }: Hardware): Gpu[] {
  const usable = gpus.filter(gpu => gpu.usable && (gpu.vendor !== 'other' || gpu.apis.length > 0))
  const discrete = usable.filter(gpu => gpu.type !== 'integrated')
  return discrete.length > 0 ? discrete : usable
}

/** Takes from `base` for what the machine has and a build that uses `used` would leave idle. Pure. */
export function scoreByReach(base: number, used: readonly Gpu[], hardware: Hardware): number {
  const relevant = relevantGpus(hardware)
  const idle = relevant.filter(gpu => !used.includes(gpu))
  if (idle.length === 0) return base
  // By memory where all tell it, else by their number.
  const told = relevant.every(gpu => gpu.totalMemory !== undefined)
  const sum = (gpus: readonly Gpu[]) => gpus.reduce((total, gpu) => total + (told ? gpu.totalMemory! : 1), 0)
  const share = sum(idle) / Math.max(1, sum(relevant))
  return Math.max(LEAST, Math.round(base - PENALTY_FOR_IDLE_CARD - PENALTY_FOR_IDLE_MEMORY * share))
}

/** A sentence on the cards that a build would leave idle, where there are any. */
export function idleCards(used: readonly Gpu[], hardware: Hardware): string[] {
  const idle = relevantGpus(hardware).filter(gpu => !used.includes(gpu))
  return idle.length > 0 && used.length > 0 ? [`It leaves ${namesOf(idle)} idle.`] : []
}

/** Names for people, equal ones counted: `NVIDIA Tesla P40 (3)`. */
export function namesOf(gpus: readonly Gpu[]): string {
  const counts = new Map<string, number>()
  for (const { name } of gpus) counts.set(name, (counts.get(name) ?? 0) + 1)
  const names = [...counts].map(([name, count]) => (count > 1 ? `${name} (${count})` : name))
  return names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : names.join('')
}

/** The numbers of some of a vendor's cards, as its own interface counts them, for the variables that choose among them. */
export function numbersOf(chosen: readonly Gpu[], all: readonly Gpu[]): string {
  // Ids count a vendor's cards as its tools do, while the list has cards before parts of processors.
  return chosen.map(gpu => /:(\d+)$/.exec(gpu.id)?.[1] ?? String(all.indexOf(gpu))).join(',')
}

const WORDS: Partial<Record<Gpu['vendor'], RegExp>> = {
  nvidia: /nvidia|cuda|nvml/i,
  amd: /amd|rocm|radeon|hip|kfd/i,
  intel: /intel|xpu|level.?zero|oneapi|i915/i,
  apple: /apple|metal/i
}

/** What the hardware's own problems say of a vendor's cards, as things that are missing. */
export function vendorProblems(vendor: Gpu['vendor'], hardware: Hardware): Fit['missing'] {
  const own = hardware.gpus.filter(gpu => gpu.vendor === vendor)
  return hardware.problems
    .filter(({ code }) => code !== 'probe_failed')
    .filter(
      ({ subject }) => own.some(({ id, name }) => subject === id || subject === name) || WORDS[vendor]?.test(subject)
    )
    .map(({ message, advice }) => ({ what: message, ...(advice === undefined ? {} : { fix: advice }) }))
}

/** The fit of a kind that cannot work on a machine. */
export function unfit(reason: string, missing: Fit['missing'] = []): Fit {
  return { score: 0, reasons: [reason], missing, gpus: [] }
}
