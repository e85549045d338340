import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import { amdChip } from './amd-chips.ts'
import { metalBudget } from './apple.ts'
import { capabilityOfId, capabilityOfName, cudaFromDriver } from './nvidia.ts'
import { VENDOR_NAMES } from './pci.ts'
import { defined, type Sighting } from './probe.ts'

/* Several sources see the same GPU, and each knows different things about it. This file merges them into one record. */

/** The sightings of one source, in its order. */
export type Source = readonly Sighting[]

/** Strips the manufacturer, trademark signs and text in brackets from a name. */
function bareName(name: string): string {
  return name
    .toLowerCase()
    .replace(/\((r|tm|c)\)|[®™]/g, ' ')
    .replace(/\([^()]*\)/g, ' ')
    .replace(/\b(nvidia|amd|intel|advanced micro devices|corporation|inc|graphics|gpu)\b/g, ' ')
    .replace(/[^a-z0-9.]+/g, ' ')
    .trim()
}

/** Compares two names of cards. A tool may have truncated one: `NVIDIA GeForce RTX 2080 ...`. */
function sameName(a: string, b: string): boolean {
  const [first, second] = [bareName(a), bareName(b)]
  const cut = (name: string, text: string) => name.trimEnd().endsWith('...') && text.replace(/[ .]+$/, '')
  const [firstCut, secondCut] = [cut(a, first), cut(b, second)]
  if (firstCut) return second.startsWith(firstCut)
  if (secondCut) return first.startsWith(secondCut)
  return first !== '' && first === second
}

const typed = ({ type }: Sighting) => (type === 'discrete' || type === 'integrated' ? type : undefined)

/** Rates a match of two sightings: 3 by PCI address, 2 by device id, 1 by name, 0 possible, -1 impossible. */
function rateMatch(a: Sighting, b: Sighting): number {
  if (a.vendor !== b.vendor) return -1
  if (a.pciBus !== undefined && b.pciBus !== undefined) return a.pciBus === b.pciBus ? 3 : -1
  if (a.pciId !== undefined && b.pciId !== undefined) return a.pciId === b.pciId ? 2 : -1
  if (a.architecture !== undefined && b.architecture !== undefined && a.architecture !== b.architecture) return -1
  if (a.name !== undefined && b.name !== undefined && sameName(a.name, b.name)) return 1
  return typed(a) !== undefined && typed(b) !== undefined && typed(a) !== typed(b) ? -1 : 0
}

/** Assigns each sighting of a source to a group, the most certain pairs first. Each group gets at most one sighting. */
function assignGroups(groups: readonly Sighting[][], source: Source): (number | undefined)[] {
  const of: (number | undefined)[] = source.map(() => undefined)
  const taken = new Set<number>()
  for (const certainty of [3, 2, 1, 0]) {
    for (const [at, sighting] of source.entries()) {
      if (of[at] !== undefined) continue
      const fitting = groups.flatMap((group, index) => {
        if (taken.has(index)) return []
        const each = group.map(member => rateMatch(member, sighting))
        return !each.includes(-1) && Math.max(...each) === certainty ? [index] : []
      })
      // A possible match is used only if there is no alternative.
      if (certainty === 0) {
        const rivals = source.filter((other, index) => of[index] === undefined && other.vendor === sighting.vendor)
        if (fitting.length !== 1 || rivals.length !== 1) continue
      }
      if (fitting[0] === undefined) continue
      of[at] = fitting[0]
      taken.add(fitting[0])
    }
  }
  return of
}

function groupSightings(sources: readonly Source[]): Sighting[][] {
  const groups: Sighting[][] = []
  for (const source of sources) {
    const of = assignGroups(groups, source)
    for (const [at, sighting] of source.entries()) {
      const group = of[at]
      if (group === undefined) groups.push([sighting])
      else groups[group]!.push(sighting)
    }
  }
  return groups
}

/** Integrated GPUs have less dedicated memory than this, unless their owner reserved more. */
const MIN_CARD = 4 * 2 ** 30
/** PCI address of the GPU in Intel's processors. Cards are behind bridges. */
const INTEL_INTEGRATED = '0000:00:02.0'

function getType(vendor: Gpu['vendor'], merged: Partial<Sighting>): Gpu['type'] {
  if (vendor === 'nvidia') return merged.name === undefined && merged.pciId === undefined ? 'unknown' : 'discrete'
  if (vendor === 'apple' || vendor === 'qualcomm') return 'integrated'
  const chip = vendor === 'amd' ? amdChip(merged.pciId, merged.architecture) : undefined
  if (chip) return chip.integrated ? 'integrated' : 'discrete'
  if (vendor !== 'intel' || merged.pciBus === undefined) return 'unknown'
  return merged.pciBus === INTEL_INTEGRATED ? 'integrated' : 'discrete'
}

function getArchitecture(vendor: Gpu['vendor'], { architecture, name, pciId }: Partial<Sighting>): string | undefined {
  if (architecture !== undefined) return architecture
  if (vendor === 'amd') return amdChip(pciId)?.gfx
  if (vendor !== 'nvidia') return undefined
  return (pciId && capabilityOfId(pciId)) ?? (name && capabilityOfName(name))
}

function driverOf(vendor: Gpu['vendor'], group: readonly Sighting[]): Gpu['driver'] {
  const drivers = group.flatMap(({ driver }) => driver ?? [])
  const first = (key: 'name' | 'version' | 'cuda') =>
    drivers.map(driver => driver[key]).find(value => value !== undefined)
  const version = first('version')
  const byVersion = vendor === 'nvidia' && version !== undefined ? cudaFromDriver(version) : undefined
  const driver = defined({ name: first('name'), version, cuda: first('cuda') ?? byVersion })
  return Object.keys(driver).length === 0 ? undefined : driver
}

/** A GPU is usable if a source could use it, or if a source reports its API and none says that it is unusable. */
function isUsable(vendor: Gpu['vendor'], group: readonly Sighting[]): boolean {
  if (group.some(({ api, usable }) => api !== undefined && usable === false)) return false
  if (group.some(({ usable }) => usable === true)) return true
  // Drivers for other vendors come with the kernel.
  return vendor !== 'nvidia' && group.every(({ usable }) => usable === undefined)
}

/** Merges the sightings of one GPU. The most reliable comes first. */
function mergeSightings(group: readonly Sighting[], id: string, memory: Hardware['memory']): Gpu {
  const { vendor } = group[0]!
  const merged: Partial<Sighting> = Object.assign({}, ...group.toReversed())
  // A complete name is better than a truncated one, whichever source it comes from.
  merged.name = group.find(({ name }) => name !== undefined && !name.endsWith('...'))?.name ?? merged.name
  const type = group.find(({ type }) => type !== undefined && type !== 'unknown')?.type ?? getType(vendor, merged)
  const unifiedMemory = merged.unifiedMemory ?? (type === 'integrated' && (merged.totalMemory ?? 0) < MIN_CARD)
  // Both figures must come from one source, because two sources may measure different things.
  const sized = group.find(({ totalMemory }) => totalMemory !== undefined)
  let { totalMemory, freeMemory } = sized ?? {}
  if (unifiedMemory && totalMemory === undefined) {
    // CUDA offers all of the machine's memory, Metal a part of it. For other APIs the share is unknown.
    const all = memory.limit ?? memory.total
    if (all > 0 && vendor === 'nvidia') totalMemory = all
    if (all > 0 && group.some(({ api }) => api === 'metal')) totalMemory = metalBudget(all)
    freeMemory = totalMemory === undefined ? undefined : Math.min(totalMemory, memory.available)
  }
  const usable = isUsable(vendor, group)
  const chip = vendor === 'amd' ? amdChip(merged.pciId, merged.architecture)?.name : undefined
  const kind = vendor in VENDOR_NAMES ? `${VENDOR_NAMES[vendor]} GPU` : 'GPU'
  return defined({
    id,
    vendor,
    name: merged.name ?? chip ?? (merged.pciId === undefined ? kind : `${kind} (${merged.pciId})`),
    type,
    pciId: merged.pciId,
    pciBus: merged.pciBus,
    architecture: getArchitecture(vendor, merged),
    totalMemory,
    freeMemory,
    driver: driverOf(vendor, group),
    unifiedMemory,
    apis: usable ? [...new Set(group.flatMap(({ api }) => api ?? []))] : [],
    usable
  })
}

const TYPE_ORDER: Gpu['type'][] = ['discrete', 'virtual', 'unknown', 'integrated']

/**
 * Merges the sightings of all sources, which are ordered from the most to the least reliable. Discrete GPUs come before
 * integrated ones. Ids number the GPUs of a vendor in the order of its most reliable source. Pure.
 */
export function mergeGpus(sources: readonly Source[], memory: Hardware['memory']): Gpu[] {
  const counts = new Map<Gpu['vendor'], number>()
  const gpus = groupSightings(sources).map(group => {
    const { vendor } = group[0]!
    const count = counts.get(vendor) ?? 0
    counts.set(vendor, count + 1)
    return mergeSightings(group, `${vendor}:${count}`, memory)
  })
  return gpus.sort((a, b) => TYPE_ORDER.indexOf(a.type) - TYPE_ORDER.indexOf(b.type))
}
