import type { Gpu, Hardware } from '../../core/contracts/hardware.ts'
import { amdChip } from './amd-chips.ts'
import { metalBudget } from './apple.ts'
import { known, type Sighting } from './findings.ts'
import { capabilityOfId, capabilityOfName, cudaOfDriver } from './nvidia-driver.ts'

/* One GPU is seen by several sources, each of which knows other things of it: this makes one record of them. */

/** The sightings of one source, in its own order. */
export type Source = readonly Sighting[]

/** What is left of a name without makers, marks and what stands in brackets. */
function bareName(name: string): string {
  return name
    .toLowerCase()
    .replace(/\((r|tm|c)\)|[®™]/g, ' ')
    .replace(/\([^()]*\)/g, ' ')
    .replace(/\b(nvidia|amd|intel|advanced micro devices|corporation|inc|graphics|gpu)\b/g, ' ')
    .replace(/[^a-z0-9.]+/g, ' ')
    .trim()
}

/** Whether two names are those of one card; a tool may have cut one short: `NVIDIA GeForce RTX 2080 ...`. */
function sameName(a: string, b: string): boolean {
  const [first, second] = [bareName(a), bareName(b)]
  const cut = (name: string, text: string) => name.trimEnd().endsWith('...') && text.replace(/[ .]+$/, '')
  const [firstCut, secondCut] = [cut(a, first), cut(b, second)]
  if (firstCut) return second.startsWith(firstCut)
  if (secondCut) return first.startsWith(secondCut)
  return first !== '' && first === second
}

const typed = ({ type }: Sighting) => (type === 'discrete' || type === 'integrated' ? type : undefined)

/** How surely two sightings are one GPU: 3 by place on the bus, 2 by id, 1 by name, 0 perhaps, -1 not at all. */
function likeness(a: Sighting, b: Sighting): number {
  if (a.vendor !== b.vendor) return -1
  if (a.pciBus !== undefined && b.pciBus !== undefined) return a.pciBus === b.pciBus ? 3 : -1
  if (a.pciId !== undefined && b.pciId !== undefined) return a.pciId === b.pciId ? 2 : -1
  if (a.architecture !== undefined && b.architecture !== undefined && a.architecture !== b.architecture) return -1
  if (a.name !== undefined && b.name !== undefined && sameName(a.name, b.name)) return 1
  return typed(a) !== undefined && typed(b) !== undefined && typed(a) !== typed(b) ? -1 : 0
}

/** The groups that the sightings of one source belong to, by its order: the surest pairs first, none of them twice. */
function pairs(groups: readonly Sighting[][], source: Source): (number | undefined)[] {
  const of: (number | undefined)[] = source.map(() => undefined)
  const taken = new Set<number>()
  for (const sureness of [3, 2, 1, 0]) {
    for (const [at, sighting] of source.entries()) {
      if (of[at] !== undefined) continue
      const fitting = groups.flatMap((group, index) => {
        if (taken.has(index)) return []
        const each = group.map(member => likeness(member, sighting))
        return !each.includes(-1) && Math.max(...each) === sureness ? [index] : []
      })
      // What may be the same is the same only where nothing else can be meant.
      if (sureness === 0) {
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

/** Sightings of the same card, together; each group in the order of the sources. */
function groupSightings(sources: readonly Source[]): Sighting[][] {
  const groups: Sighting[][] = []
  for (const source of sources) {
    const of = pairs(groups, source)
    for (const [at, sighting] of source.entries()) {
      const group = of[at]
      if (group === undefined) groups.push([sighting])
      else groups[group]!.push(sighting)
    }
  }
  return groups
}

/** What a GPU within a processor has for itself is less than this, or else a choice of its owner. */
const SMALLEST_CARD = 4 * 2 ** 30
/** Intel's processors have their GPU at this place; cards are behind bridges. */
const INTEL_INTEGRATED = '0000:00:02.0'

function typeOf(vendor: Gpu['vendor'], told: Partial<Sighting>): Gpu['type'] {
  if (told.type !== undefined && told.type !== 'unknown') return told.type
  if (vendor === 'nvidia') return told.name === undefined && told.pciId === undefined ? 'unknown' : 'discrete'
  if (vendor === 'apple' || vendor === 'qualcomm') return 'integrated'
  const chip = vendor === 'amd' ? amdChip(told.pciId, told.architecture) : undefined
  if (chip) return chip.integrated ? 'integrated' : 'discrete'
  if (vendor === 'intel' && told.pciBus !== undefined)
    return told.pciBus === INTEL_INTEGRATED ? 'integrated' : 'discrete'
  return 'unknown'
}

function architectureOf(vendor: Gpu['vendor'], { architecture, name, pciId }: Partial<Sighting>): string | undefined {
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
  const byVersion = vendor === 'nvidia' && version !== undefined ? cudaOfDriver(version) : undefined
  const driver = known({ name: first('name'), version, cuda: first('cuda') ?? byVersion })
  return Object.keys(driver).length === 0 ? undefined : driver
}

/** A driver that offers an interface and yet cannot be used says so with authority; else whoever was served counts. */
function usableOf(vendor: Gpu['vendor'], group: readonly Sighting[]): boolean {
  if (group.some(({ api, usable }) => api !== undefined && usable === false)) return false
  if (group.some(({ usable }) => usable === true)) return true
  // Drivers of the others come with every kernel.
  return vendor !== 'nvidia' && group.every(({ usable }) => usable === undefined)
}

const NO_NAME: Record<Gpu['vendor'], string> = {
  nvidia: 'NVIDIA GPU',
  amd: 'AMD GPU',
  intel: 'Intel GPU',
  apple: 'Apple GPU',
  qualcomm: 'Qualcomm GPU',
  other: 'GPU'
}

/** A GPU from all that was seen of it; sources that know better come first. */
function gpuOf(group: readonly Sighting[], id: string, memory: Hardware['memory']): Gpu {
  const { vendor } = group[0]!
  const told: Partial<Sighting> = Object.assign({}, ...group.toReversed())
  // A cut name is worth less than a whole one, whoever tells it.
  told.name = group.find(({ name }) => name !== undefined && !name.endsWith('...'))?.name ?? told.name
  const surely = group.find(({ type }) => type !== undefined && type !== 'unknown')?.type
  const type = typeOf(vendor, { ...told, ...known({ type: surely }) })
  const unifiedMemory = told.unifiedMemory ?? (type === 'integrated' && (told.totalMemory ?? 0) < SMALLEST_CARD)
  // Both numbers are of one source: those of two may count different things.
  const sized = group.find(({ totalMemory }) => totalMemory !== undefined)
  let { totalMemory, freeMemory }: { totalMemory?: number | undefined; freeMemory?: number | undefined } = sized ?? {}
  if (unifiedMemory && totalMemory === undefined) {
    // CUDA gives all of the machine's memory, Metal a part of it; of others nobody knows.
    const all = memory.limit ?? memory.total
    if (all > 0 && vendor === 'nvidia') totalMemory = all
    if (all > 0 && group.some(({ api }) => api === 'metal')) totalMemory = metalBudget(all)
    freeMemory = totalMemory === undefined ? undefined : Math.min(totalMemory, memory.available)
  }
  const usable = usableOf(vendor, group)
  const chip = vendor === 'amd' ? amdChip(told.pciId, told.architecture)?.name : undefined
  return {
    id,
    vendor,
    name: told.name ?? chip ?? `${NO_NAME[vendor]}${told.pciId === undefined ? '' : ` (${told.pciId})`}`,
    type,
    ...known({
      pciId: told.pciId,
      pciBus: told.pciBus,
      architecture: architectureOf(vendor, told),
      totalMemory,
      freeMemory,
      driver: driverOf(vendor, group)
    }),
    unifiedMemory,
    apis: usable ? [...new Set(group.flatMap(({ api }) => api ?? []))] : [],
    usable
  }
}

const TYPE_ORDER: Gpu['type'][] = ['discrete', 'virtual', 'unknown', 'integrated']

/**
 * GPUs from what all sources saw, those that know best first. Cards of their own come before parts of processors; ids
 * count the GPUs of a vendor in the order of the source that knows it best.
 */
export function mergeGpus(sources: readonly Source[], memory: Hardware['memory']): Gpu[] {
  const counts = new Map<Gpu['vendor'], number>()
  const gpus = groupSightings(sources).map(group => {
    const { vendor } = group[0]!
    const count = counts.get(vendor) ?? 0
    counts.set(vendor, count + 1)
    return gpuOf(group, `${vendor}:${count}`, memory)
  })
  return gpus.sort((a, b) => TYPE_ORDER.indexOf(a.type) - TYPE_ORDER.indexOf(b.type))
}
