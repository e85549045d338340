import type { Fit } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'

/**
 * What a kind of build scores on a machine that has all it wants. What a vendor's own interface does fastest comes first,
 * then Vulkan, which reaches nearly everything, then the processor.
 */
export const SCORES = {
  metal: 100,
  cuda13: 100,
  cuda12: 95,
  rocm: 90,
  sycl: 75,
  /** ROCm with a card that it was probably made for, although nobody says which one it is. */
  rocmUnknown: 65,
  vulkan: 60,
  /** ROCm with a card that llama.cpp is compiled for but that AMD's own libraries mostly leave out. */
  rocmUnsupported: 50,
  vulkanIntegrated: 40,
  vulkanVirtual: 35,
  rocmUnsupportedIntegrated: 30,
  /** SYCL on the graphics of a processor, where Vulkan is as fast and needs less. */
  syclIntegrated: 30,
  cpu: 10,
  /** Possible, but only for those who choose it. */
  byChoice: 5
} as const

/**
 * The score of a kind that lacks a library which one command installs. It keeps its place among others of that sort and
 * stays above the processor alone, since a library may lie where nobody looked: the proof will tell.
 */
export function withoutLibrary(base: number): number {
  return Math.min(base, SCORES.cpu + Math.round(base / 5))
}

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

/**
 * The lowest glibc that programs start with which the release builds on each system. They need no more than the
 * functions they call, so it may lie below the system's own version.
 */
export const BUILT_ON = { ubuntu2204: '2.34', ubuntu2404: '2.38' } as const

/** How a package is installed, by the package managers that are common. */
export function installPackage(debian: string, fedora: string, arch: string): string {
  return `sudo apt install ${debian} (Debian, Ubuntu), sudo dnf install ${fedora} (Fedora), sudo pacman -S ${arch} (Arch)`
}

/** Whether anybody could look which libraries there are: of recordings of other machines they are often missing. */
export function knowsLibraries({ probes }: Hardware): boolean {
  return probes.every(({ probe, outcome }) => probe !== 'libraries' || outcome === 'ok')
}

/** Whether this system has one of the libraries; undefined where nobody knows. */
export function hasLibrary(hardware: Hardware, ...names: string[]): boolean | undefined {
  if (names.some(name => hardware.libraries.includes(name))) return true
  return knowsLibraries(hardware) ? false : undefined
}

/** Which of two dotted versions is higher, number by number; positive when it is `a`. Missing numbers count as 0. Pure. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [partsOf(a), partsOf(b)]
  for (let index = 0; index < Math.max(left.length, right.length); index++) {
    const difference = (left[index] ?? 0) - (right[index] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}

function partsOf(version: string): number[] {
  return version.split('.').map(part => Number.parseInt(part, 10) || 0)
}

/** The first number of a dotted version. */
export function majorOf(version: string): number {
  return partsOf(version)[0]!
}
