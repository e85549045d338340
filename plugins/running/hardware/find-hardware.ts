import type { Gpu, GpuReading, Hardware, HardwareProblem, MemoryNow } from '../../../core/contracts/hardware.ts'
import { ACCESS_ADVICE, amdChip, kfdTopology, rocminfo } from './amd.ts'
import { appleCpu, metalBudget, systemProfiler } from './apple.ts'
import { syclLs, xpuSmi } from './intel.ts'
import { cLibrary, libraries } from './libraries.ts'
import { deviceNodes, pciDevices, pciNames, readCard, readSensors, windowsAdapters } from './listed-cards.ts'
import { machineMemory } from './main-memory.ts'
import {
  capabilityOfId,
  capabilityOfName,
  cudaFromDriver,
  nvidiaDriver,
  nvidiaMemory,
  nvidiaSensors,
  nvidiaSmi,
  type SmiGpu
} from './nvidia.ts'
import { vendorFacts } from './pci.ts'
import { defined, type Findings, type Machine, type Probe, runProbe, type Sighting } from './probe.ts'
import { linuxCpu, ownProcessor } from './processor.ts'
import { vulkanDriverFiles, vulkaninfo } from './vulkan-drivers.ts'

/** All probes. GPU probes are ordered from the most to the least reliable. */
export const PROBES: readonly Probe[] = [
  [linuxCpu, appleCpu, machineMemory, libraries, cLibrary, deviceNodes, nvidiaSmi, nvidiaDriver, pciDevices],
  [kfdTopology, rocminfo, xpuSmi, syclLs, systemProfiler],
  [vulkaninfo, vulkanDriverFiles, pciNames, windowsAdapters]
].flat()

type ProbeResult = Awaited<ReturnType<typeof runProbe>>

/** Runs all probes at the same time, each for at most `limit` milliseconds, and merges their results. Never rejects. */
export async function findHardware(machine: Machine, limit: number): Promise<Hardware> {
  const probes = PROBES.filter(({ platforms }) => platforms?.includes(machine.platform) ?? true)
  const results = await Promise.all(probes.map(probe => runProbe(probe, machine, limit)))
  // Node.js is the last resort for information about the processor.
  const own: ProbeResult = { report: { probe: 'node', outcome: 'ok', duration: 0 }, findings: ownProcessor(machine) }
  const hardware = assembleHardware(machine, [...results, own])
  return { ...hardware, probes: results.map(({ report }) => report) }
}

/** Programs that list only GPUs they could open, unlike files, which list every GPU. */
const OPENED_BY = ['rocminfo', 'vulkaninfo', 'xpu-smi', 'sycl-ls']

/** Returns the problem that nvidia-smi reports if the driver does not work. */
function brokenDriver(results: readonly ProbeResult[]): HardwareProblem | undefined {
  const smi = results.find(({ report }) => report.probe === 'nvidia-smi')
  if (!smi || smi.findings.gpus?.length) return undefined
  return smi.findings.problems?.find(({ code }) => code !== 'partitioned')
}

/** Collects the GPUs that each source saw, corrected by what other sources know. */
function collectSources(results: readonly ProbeResult[]): Source[] {
  const broken = brokenDriver(results)
  const noAccess = results.some(({ findings }) => findings.noDeviceAccess === true)
  const sources = results.map(({ report, findings }) =>
    (findings.gpus ?? []).map((gpu): Sighting => {
      const { api, ...rest } = gpu
      // The kernel's files only show that a driver is loaded. nvidia-smi knows whether it works.
      if (broken && gpu.vendor === 'nvidia' && report.probe === 'nvidia-driver') return { ...rest, usable: false }
      const bySystem = gpu.vendor === 'amd' || gpu.vendor === 'intel'
      if (noAccess && bySystem && !OPENED_BY.includes(report.probe)) return { ...rest, usable: false }
      return gpu
    })
  )
  const seen = sources.flat().some(({ vendor }) => vendor === 'nvidia')
  // The driver is loaded only if there is a card, but its model is unknown.
  if (broken?.code === 'driver_mismatch' && !seen) sources.push([{ vendor: 'nvidia', usable: false }])
  return sources
}

/** Describes a GPU without a working driver when no probe reported a reason. */
function unservedProblem(gpu: Gpu, noAccess: boolean): HardwareProblem {
  if (noAccess && (gpu.vendor === 'amd' || gpu.vendor === 'intel')) {
    return {
      code: 'no_permission',
      subject: gpu.name,
      message: `This user has no permission to open the device of ${gpu.name} in /dev/dri.`,
      advice: ACCESS_ADVICE
    }
  }
  const bound = gpu.driver?.name
  const message = `${gpu.name} is present, but ${bound === undefined ? 'has no working driver' : `its driver is ${bound}`}.`
  const advice = vendorFacts(gpu.vendor)?.advice
  return defined({ code: 'driver_not_loaded' as const, subject: gpu.name, message, advice })
}

function listProblems(results: readonly ProbeResult[], gpus: readonly Gpu[], platform: string): HardwareProblem[] {
  const reported = results.flatMap(({ findings }) => findings.problems ?? [])
  const noAccess = results.some(({ findings }) => findings.noDeviceAccess === true)
  const unserved = gpus.filter(gpu => {
    if (gpu.usable) return false
    const explained = reported.some(
      ({ subject }) => subject === gpu.id || (gpu.vendor === 'nvidia' && subject === 'NVIDIA driver')
    )
    return !explained && platform !== 'darwin'
  })
  return [...reported, ...unserved.map(gpu => unservedProblem(gpu, noAccess)), ...results.flatMap(probeProblem)]
}

/** Reports a probe that hangs, and a failing nvidia-smi. Other failures are not worth a warning. */
function probeProblem({ report: { probe, outcome, detail = '' }, findings }: ProbeResult): HardwareProblem[] {
  if (outcome === 'timed_out') {
    const message = `${probe} did not answer in time; its information about this machine is missing.`
    const advice =
      'Run it by hand: if it hangs there too, so does its driver, and the machine must be restarted; if it is only ' +
      'slow, give it more time with "probe_timeout" under "hardware" in config.yaml.'
    return [{ code: 'probe_failed', subject: probe, message, advice }]
  }
  if (probe !== 'nvidia-smi' || outcome === 'ok' || outcome === 'absent' || findings.problems?.length) return []
  const message = `nvidia-smi failed: ${detail}`
  return [{ code: 'probe_failed', subject: probe, message, advice: 'Run it by hand.' }]
}

/** Without vulkaninfo, assumes that an installed Vulkan driver supports the GPUs of its vendor. */
function withVulkan(gpus: readonly Gpu[], results: readonly ProbeResult[]): Gpu[] {
  if (results.some(({ report }) => report.probe === 'vulkaninfo' && report.outcome === 'ok')) return [...gpus]
  const vendors = results.flatMap(({ findings }) => findings.vulkanDrivers ?? [])
  return gpus.map(gpu =>
    gpu.usable && vendors.includes(gpu.vendor) && !gpu.apis.includes('vulkan')
      ? { ...gpu, apis: [...gpu.apis, 'vulkan' as const] }
      : gpu
  )
}

export function assembleHardware(
  machine: Pick<Machine, 'platform' | 'arch' | 'root'>,
  results: readonly ProbeResult[]
): Hardware {
  const first = <Key extends keyof Findings>(key: Key): Findings[Key] =>
    results.map(({ findings }) => findings[key]).find(value => value !== undefined)
  const cpu = first('cpu')
  const memory = { total: 0, available: 0, ...first('memory') }
  const gpus = withVulkan(mergeGpus(collectSources(results), memory), results)
  const glibc = first('glibc')
  // In a recording of a Mac, nothing else shows that the processor is made by Intel.
  const intelCpu =
    /intel/i.test(cpu?.model ?? '') || (gpus.length > 0 && gpus.every(({ vendor }) => vendor !== 'apple'))
  const intelMac = machine.platform === 'darwin' && machine.root !== '' && intelCpu
  return {
    platform: machine.platform,
    arch: intelMac ? 'x64' : machine.arch,
    ...(glibc === undefined ? {} : { glibc }),
    cpu: { model: 'unknown', threads: 1, features: [], ...cpu },
    memory,
    gpus,
    libraries: first('libraries') ?? [],
    problems: listProblems(results, gpus, machine.platform),
    probes: results.map(({ report }) => report)
  }
}

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
  const kind = `${vendorFacts(vendor)?.title ?? ''} GPU`.trim()
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

/* The figures of GPUs that change: free memory and sensors. */

/** Milliseconds for which the output of nvidia-smi is reused, because a call takes much of a second. */
const REUSED_FOR = 1000
/** Milliseconds to wait after a failure before calling nvidia-smi again. */
const RETRY_AFTER = 30_000

const findInSmi = ({ id, pciBus }: Gpu, smi: readonly SmiGpu[] | undefined) =>
  smi?.find(card => (card.pciBus !== undefined && card.pciBus === pciBus) || id === `nvidia:${card.index}`)

export type GpuMemory = (machine: Machine, gpus: readonly Gpu[]) => Promise<MemoryNow['gpus']>

/** Reads the free memory of GPUs with dedicated memory of a known size, if it can be read. Never rejects. */
export function createGpuMemory(): GpuMemory {
  let answer: ReturnType<typeof nvidiaMemory> | undefined
  let until = 0

  function nvidia(machine: Machine): ReturnType<typeof nvidiaMemory> {
    if (answer && performance.now() < until) return answer
    until = performance.now() + REUSED_FOR
    answer = nvidiaMemory(machine).catch(() => {
      // A program that fails or hangs must not delay every load.
      until = performance.now() + RETRY_AFTER
      return undefined
    })
    return answer
  }

  return async (machine, gpus) => {
    const own = gpus.filter(gpu => gpu.usable && !gpu.unifiedMemory && gpu.totalMemory !== undefined)
    const smi = own.some(({ vendor }) => vendor === 'nvidia') ? await nvidia(machine) : []
    const now: MemoryNow['gpus'] = {}
    for (const gpu of own) {
      const { vendor, pciBus } = gpu
      const listed = vendor === 'amd' && pciBus !== undefined ? await readCard(machine.files, pciBus) : undefined
      const { totalMemory: total, freeMemory: free } = (vendor === 'nvidia' ? findInSmi(gpu, smi) : listed) ?? {}
      // A partitioned card reports its total size, so the free memory of one instance is unknown.
      if (gpu.vendor === 'nvidia' && total !== gpu.totalMemory) continue
      if (total !== undefined && free !== undefined) now[gpu.id] = { total, free }
    }
    return now
  }
}

/** Reads the sensors of GPUs. Leaves out GPUs without readings. Never rejects. */
export async function readGpus(machine: Machine, gpus: readonly Gpu[]): Promise<GpuReading[]> {
  const { platform, files } = machine
  const smi = gpus.some(({ vendor }) => vendor === 'nvidia') ? await nvidiaSensors(machine).catch(() => undefined) : []
  const readings = gpus.map(async gpu => {
    const { id, name, vendor, pciBus } = gpu
    const isListed = vendor !== 'nvidia' && platform === 'linux' && pciBus !== undefined
    const { temperature, utilization }: Partial<SmiGpu> =
      (isListed ? await readSensors(files, pciBus) : findInSmi(gpu, vendor === 'nvidia' ? smi : [])) ?? {}
    if (temperature === undefined && utilization === undefined) return []
    return [{ id, name, ...defined({ temperature, utilization }) }]
  })
  return (await Promise.all(readings)).flat()
}
