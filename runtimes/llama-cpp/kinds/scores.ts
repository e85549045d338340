import type { ArchivePattern, Fit } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import archives from './archives.json' with { type: 'json' }

/** Scores of kinds on a machine with everything they need: the vendors' APIs, Vulkan, then the processor. */
export const SCORES = {
  metal: 100,
  cuda13: 100,
  cuda12: 95,
  rocm: 90,
  sycl: 75,
  /** ROCm with a card of unknown architecture, which ROCm probably supports. */
  rocmUnknown: 65,
  vulkan: 60,
  /** ROCm with a card that llama.cpp is compiled for but AMD's own libraries mostly do not support. */
  rocmUnsupported: 50,
  vulkanIntegrated: 40,
  vulkanVirtual: 35,
  rocmUnsupportedIntegrated: 30,
  /** SYCL on integrated graphics, which Vulkan drives as fast with fewer requirements. */
  syclIntegrated: 30,
  cpu: 10,
  /** Works, but is used only if the user chooses it. */
  byChoice: 5
} as const

/** Deductions for idle cards: a fixed one, and one by their share of the graphics memory. */
const PENALTY_FOR_IDLE_CARD = 6
const PENALTY_FOR_IDLE_MEMORY = 50
/** Below the score of the processor: possible, but not worth using. */
const LOWEST = 1

/** Returns the working GPUs, without display chips of servers, and without integrated GPUs beside a card. */
export function relevantGpus({ gpus }: Hardware): Gpu[] {
  const usable = gpus.filter(gpu => gpu.usable && (gpu.vendor !== 'other' || gpu.apis.length > 0))
  const discrete = usable.filter(gpu => gpu.type !== 'integrated')
  return discrete.length > 0 ? discrete : usable
}

export function relevantVendorGpus(vendor: Gpu['vendor'], hardware: Hardware): Gpu[] {
  return relevantGpus({ ...hardware, gpus: hardware.gpus.filter(gpu => gpu.vendor === vendor) })
}

/** Rates a kind that would use these GPUs (at least one). GPUs that it leaves idle lower the score. */
export function fitFor(
  used: readonly Gpu[],
  hardware: Hardware,
  options: { base: number; missing: Fit['missing']; library?: boolean; detail?: string; reasons?: string[] }
): Fit {
  const { base, missing, library = true, detail = '', reasons = [] } = options
  const relevant = relevantGpus(hardware)
  const idle = relevant.filter(gpu => !used.includes(gpu))
  // Stays above the processor: a library may be installed somewhere unexpected, and the build is verified anyway.
  let score = library ? base : Math.min(base, SCORES.cpu + Math.round(base / 5))
  if (idle.length > 0) {
    // By memory if all sizes are known, otherwise by number.
    const sized = relevant.every(gpu => gpu.totalMemory !== undefined)
    const sum = (gpus: readonly Gpu[]) => gpus.reduce((total, gpu) => total + (sized ? gpu.totalMemory! : 1), 0)
    const share = sum(idle) / Math.max(1, sum(relevant))
    score = Math.max(LOWEST, Math.round(score - PENALTY_FOR_IDLE_CARD - PENALTY_FOR_IDLE_MEMORY * share))
  }
  const why = [
    `It uses ${listNames(used)}${detail && ` (${detail})`}.`,
    ...reasons,
    ...(idle.length > 0 ? [`It leaves ${listNames(idle)} idle.`] : [])
  ]
  return { ...fitAt(score, why, used), missing }
}

/** Returns the working cards of a vendor and their problems, or why there are none. For Linux and Windows. */
export function cardsFor(
  kind: { vendor: 'amd' | 'intel'; brand: string; title: string },
  hardware: Hardware
): { cards: Gpu[]; problems: Fit['missing'] } | { unfit: Fit } {
  const { vendor, brand, title } = kind
  const all = hardware.gpus.filter(gpu => gpu.vendor === vendor)
  const problems = vendorProblems(vendor, hardware)
  if (all.length === 0) return { unfit: unfit(`No ${brand} GPU was found.`, problems) }
  if (!['linux', 'win32'].includes(hardware.platform)) {
    return { unfit: unfit(`${title} is for Linux and Windows only.`) }
  }
  const cards = relevantVendorGpus(vendor, hardware)
  return cards.length > 0 ? { cards, problems } : { unfit: unfit(`${listNames(all)}: no working driver.`, problems) }
}

/** Lists names with the number of equal ones: `NVIDIA Tesla P40 (3)`. */
export function listNames(gpus: readonly Gpu[]): string {
  const counts = new Map<string, number>()
  for (const { name } of gpus) counts.set(name, (counts.get(name) ?? 0) + 1)
  const names = [...counts].map(([name, count]) => (count > 1 ? `${name} (${count})` : name))
  return names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : names.join('')
}

/** Returns the cards to use, as the vendor's API numbers them. Undefined if all cards stay visible. */
export function visibleDevices(vendor: Gpu['vendor'], used: readonly Gpu[], { gpus }: Hardware): string | undefined {
  const working = gpus.filter(gpu => gpu.vendor === vendor && gpu.usable)
  if (used.length === 0 || used.length === working.length) return undefined
  // Ids number a vendor's cards in the order of its tools, but the list is sorted differently.
  return used.map(gpu => /:(\d+)$/.exec(gpu.id)?.[1] ?? String(working.indexOf(gpu))).join(',')
}

const VENDOR_WORDS: Partial<Record<Gpu['vendor'], RegExp>> = {
  nvidia: /nvidia|cuda|nvml/i,
  amd: /amd|rocm|radeon|hip|kfd/i,
  intel: /intel|xpu|level.?zero|oneapi|i915/i,
  apple: /apple|metal/i
}

export function vendorProblems(vendor: Gpu['vendor'], hardware: Hardware): Fit['missing'] {
  const names = hardware.gpus.filter(gpu => gpu.vendor === vendor).flatMap(({ id, name }) => [id, name])
  return hardware.problems
    .filter(({ code }) => code !== 'probe_failed')
    .filter(({ subject }) => names.includes(subject) || VENDOR_WORDS[vendor]?.test(subject))
    .map(({ message, advice }) => ({ what: message, ...(advice !== undefined && { fix: advice }) }))
}

export const fitAt = (score: number, reasons: string[], gpus: readonly Gpu[] = []): Fit => {
  return { score, reasons, missing: [], gpus: gpus.map(({ id }) => id) }
}

export const unfit = (reason: string, missing: Fit['missing'] = []): Fit => ({ ...fitAt(0, [reason]), missing })

/** The tag of a release, nightly (`b11347`) or stable (`v0.6.0`), as part of a regular expression. */
const RELEASE_TAG = '(?:b\\d+|v\\d+\\.\\d+\\.\\d+)'

type ArchiveRow = [platform: ArchivePattern['platform'], arch: string, name: string, glibc?: string]

/**
 * Returns the patterns of a kind's release archives. Archives for CUDA have a companion with the toolkit's libraries,
 * whose name may lack the tag. The minimum glibc is that of the system on which they are made.
 */
export function archivesOf(kind: keyof typeof archives): ArchivePattern[] {
  return (archives[kind] as ArchiveRow[]).map(([platform, arch, name, glibc]) => ({
    platform,
    arch,
    archive: new RegExp(`^llama-${RELEASE_TAG}-bin-${name}\\.(?:tar\\.gz|zip)$`),
    ...(glibc !== undefined && { glibc }),
    ...(kind.startsWith('cuda') && {
      companion: ([file]) => {
        const middle = file.replace(/^.*?-(?=bin-)|\.(tar\.gz|zip)$/g, '').replaceAll('.', '\\.')
        return new RegExp(`^cudart-llama-(?:${RELEASE_TAG}-)?${middle}\\.(?:tar\\.gz|zip)$`)
      }
    })
  }))
}

export function installPackage(debian: string, fedora: string, arch: string): string {
  return `sudo apt install ${debian} (Debian, Ubuntu), sudo dnf install ${fedora} (Fedora), sudo pacman -S ${arch} (Arch)`
}

/** Whether the installed libraries are known. Recordings of other machines often lack them. */
export function knowsLibraries({ probes }: Hardware): boolean {
  return probes.every(({ probe, outcome }) => probe !== 'libraries' || outcome === 'ok')
}

export function hasLibrary(hardware: Hardware, name: string): boolean | undefined {
  if (hardware.libraries.includes(name)) return true
  return knowsLibraries(hardware) ? false : undefined
}

/** Compares dotted versions number by number. Positive if `a` is higher. Missing numbers are 0. Pure. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [getParts(a), getParts(b)]
  for (let index = 0; index < Math.max(left.length, right.length); index++) {
    const difference = (left[index] ?? 0) - (right[index] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}

function getParts(version: string): number[] {
  return version.split('.').map(part => Number.parseInt(part, 10) || 0)
}

/** Returns the release in a build's id, such as `b11347` in `release-b11347-cuda-13`. */
export function releaseTag(id: string): string | undefined {
  return new RegExp(`^(?:release|archive)-(${RELEASE_TAG})-`).exec(id)?.[1]
}

/** Returns the release in the name of an archive, or of the folder in it. */
export function archiveTag(name: string): string | undefined {
  return new RegExp(`^llama-(${RELEASE_TAG})(?:-|$)`).exec(name)?.[1]
}

/** Returns the kind and version of a release: stable (`v0.6.0`) or nightly (`b11347`). Undefined for others. */
export function parseTag(tag: string | undefined): { isStable: boolean; version: string } | undefined {
  const [, version, nightly] = /^(?:v(\d+\.\d+\.\d+)|b(\d+))$/.exec(tag ?? '') ?? []
  const found = version ?? nightly
  return found === undefined ? undefined : { isStable: version !== undefined, version: found }
}

/** Whether the server's newest release is newer, or not comparable because it is of the other kind. */
export function isNewerRelease(offered: string, present: string | undefined): boolean {
  const [theirs, own] = [parseTag(offered), parseTag(present)]
  if (theirs && own && theirs.isStable === own.isStable) return compareVersions(theirs.version, own.version) > 0
  return offered !== present
}

/** Orders the releases of installed builds by preference: stable releases, then nightly ones, each newest first. */
export function byRelease(a: string | undefined, b: string | undefined): number {
  const parse = (tag: string | undefined) => parseTag(tag) ?? { isStable: false, version: '-1' }
  const [left, right] = [parse(a), parse(b)]
  return Number(right.isStable) - Number(left.isStable) || compareVersions(right.version, left.version)
}
