import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import CHIPS from './amd-chips.json' with { type: 'json' }
import { addressFromLocation, isInRange, pciId, vendorFromId } from './pci.ts'
import { type Findings, getField, type Probe, ProbeFailure, type Sighting, sighting, toBytes } from './probe.ts'

/* AMD's GPUs, from the kernel's compute devices and rocminfo. */

// ---- /sys/class/kfd/kfd/topology/nodes/<n> (https://docs.kernel.org/gpu/amdgpu and kfd_topology.c). Processors and
// partitions of a card are nodes too.

const NODES = '/sys/class/kfd/kfd/topology/nodes'
/** Frame buffers that the processor can and cannot see (HSA_MEM_HEAP_TYPE_FB_PUBLIC, _PRIVATE). */
const FRAME_BUFFERS = [1, 2]
/** Enough for eight cards with eight partitions each, and the processors. */
const MAX_NODES = 128

function numbersOf(text: string): Partial<Record<string, number>> {
  return Object.fromEntries(
    [...text.matchAll(/^(\w+) (\d{1,20})\s*$/gm)].map(([, key, value]) => [key!, Number(value)])
  )
}

/** Parses one node, with the properties of its memory banks. Returns undefined for a processor. */
export function parseKfdNode(properties: string, banks: readonly string[]): Sighting | undefined {
  const values = numbersOf(properties)
  if (!values.simd_count) return undefined
  if (values.vendor_id !== undefined && vendorFromId(pciId(values.vendor_id)) !== 'amd') return undefined
  const own = banks.map(numbersOf).filter(bank => FRAME_BUFFERS.includes(bank.heap_type ?? 0))
  const inBanks = own.reduce((sum, bank) => sum + (bank.size_in_bytes ?? 0), 0)
  return sighting({
    vendor: 'amd',
    pciId: pciId(values.device_id),
    pciBus: addressFromLocation(values.location_id ?? 0, values.domain),
    architecture: gfxFromTargetVersion(values.gfx_target_version ?? 0),
    totalMemory: toBytes(inBanks || (values.local_mem_size ?? 0)),
    // Every kernel with amdgpu has this list, so it does not show whether ROCm is installed.
    driver: { name: 'amdgpu' },
    usable: true
  })
}

/** Merges the nodes of a card in compute partitions. Their bus addresses differ only in the function. */
export function foldPartitions(nodes: readonly Sighting[]): { gpus: Sighting[]; problems: HardwareProblem[] } {
  const cards = new Map<string, Sighting[]>()
  for (const [index, node] of nodes.entries()) {
    const place = node.pciBus === undefined ? `node ${index}` : `${node.pciBus.replace(/\.\d$/, '')} ${node.pciId}`
    cards.set(place, [...(cards.get(place) ?? []), node])
  }
  const problems: HardwareProblem[] = []
  const gpus: Sighting[] = []
  for (const [place, parts] of cards) {
    const sum = (key: 'totalMemory' | 'freeMemory') =>
      parts.every(part => part[key] !== undefined) ? parts.reduce((all, part) => all + part[key]!, 0) : undefined
    gpus.push(sighting({ ...parts[0]!, totalMemory: sum('totalMemory'), freeMemory: sum('freeMemory') }))
    if (parts.length === 1) continue
    problems.push({
      code: 'partitioned',
      subject: `AMD GPU at ${place.split(' ')[0]}`,
      message: `It is split into ${parts.length} compute partitions, and llama.cpp treats each as a device.`,
      advice: 'For one large model, merge them into one device: "sudo amd-smi set --compute-partition SPX".'
    })
  }
  return { gpus, problems }
}

export const kfdTopology: Probe = {
  name: 'kfd-topology',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = await files.names(NODES)
    if (names.length === 0) throw new ProbeFailure('absent', `there is no ${NODES}`)
    const text = async (path: string) => (await files.text(`${NODES}/${path}/properties`)) ?? ''
    const nodes = names.slice(0, MAX_NODES).map(async name => {
      const banks = (await files.names(`${NODES}/${name}/mem_banks`)).slice(0, 8)
      return parseKfdNode(await text(name), await Promise.all(banks.map(bank => text(`${name}/mem_banks/${bank}`))))
    })
    return foldPartitions((await Promise.all(nodes)).flatMap(node => node ?? []))
  }
}

// ---- rocminfo

/** Parses the GPU agents of `rocminfo`, which lists processors as agents too. Returns undefined if there are none. */
export function parseRocminfo(text: string): Sighting[] | undefined {
  const agents = text.split(/^\s*Agent \d+\s*$/m).slice(1)
  if (agents.length === 0) return undefined
  const gpus = agents.filter(agent => getField(agent, 'Device Type') === 'GPU')
  return gpus.map(agent => {
    const decimal = (key: string) => Number.parseInt(getField(agent, key) ?? '', 10)
    // The first pool that the whole GPU can use. For an integrated GPU this is main memory.
    const pool = /Segment:\s*GLOBAL[^\n]*COARSE GRAINED[^\n]*\n\s*Size:\s*(\d{1,15})\(/.exec(agent)?.[1]
    const id = pciId(/\((0x[0-9a-f]{4})\)/i.exec(getField(agent, 'Chip ID') ?? '')?.[1])
    const integrated = amdChip(id)?.integrated ?? /Memory Properties:[^\n]*\bAPU\b/.test(agent)
    const name = getField(agent, 'Marketing Name')
    return sighting({
      vendor: 'amd',
      name: name === 'N/A' ? undefined : name,
      architecture: gfxName(getField(agent, 'Name')),
      pciId: id,
      pciBus: addressFromLocation(decimal('BDFID'), decimal('Domain') || 0),
      type: integrated ? 'integrated' : undefined,
      totalMemory: integrated ? undefined : toBytes(pool, 1024),
      api: 'rocm',
      usable: true
    })
  })
}

export const ACCESS_ADVICE =
  'Run "sudo usermod -aG render,video $USER" and log in again; in a container, start it with ' +
  '"--device /dev/kfd --device /dev/dri".'

export function rocminfoProblem(text: string): HardwareProblem | undefined {
  if (/permission denied|not (a )?member of .{0,40}group|unable to open \/dev\/kfd/i.test(text)) {
    return {
      code: 'no_permission',
      subject: 'ROCm',
      message: 'This user has no permission to open /dev/kfd, which ROCm needs.',
      advice: ACCESS_ADVICE
    }
  }
  if (/module is NOT loaded/i.test(text)) {
    return {
      code: 'driver_not_loaded',
      subject: 'ROCm',
      message: 'rocminfo is installed, but the amdgpu driver is not loaded.',
      advice: 'Load it with "sudo modprobe amdgpu"; if it fails, "sudo dmesg | grep -i amdgpu" shows why.'
    }
  }
  return undefined
}

export const rocminfo: Probe = {
  name: 'rocminfo',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const { text, failure } = await machine.run('rocminfo', [])
    const gpus = parseRocminfo(text)
    const problem = rocminfoProblem(text)
    const findings = { gpus: foldPartitions(gpus ?? []).gpus, problems: problem ? [problem] : [] }
    if (gpus) return findings
    if (problem) throw new ProbeFailure('failed', problem.message, findings)
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no agents in the output of rocminfo')
  }
}

/*
 * AMD's GPU architectures (https://llvm.org/docs/AMDGPUUsage.html#processors). `amd-chips.json` has the families of chips
 * with their PCI device ids (libdrm's amdgpu.ids, the kernel's amdgpu_drv.c). Their names are used without a product name.
 */

/** Finds a chip by its PCI id, or the chips of an architecture if they are all integrated or all not. */
export function amdChip(pciId: string | undefined, gfx?: string) {
  const chip = pciId && CHIPS.find(({ ids }) => isInRange(pciId, ids))
  if (chip) return { gfx: chip.gfx, name: `AMD ${chip.name}`, integrated: chip.integrated === true }
  const alike = pciId === undefined ? CHIPS.filter(each => each.gfx === gfx) : []
  const [first] = alike
  if (!first || alike.some(each => each.integrated !== first.integrated)) return undefined
  const name = alike.length === 1 ? `AMD ${first.name}` : `AMD GPU (${gfx})`
  return { gfx: first.gfx, name, integrated: first.integrated === true }
}

/** Extracts the bare name from `gfx906:sramecc+:xnack-` or `amdgcn-amd-amdhsa--gfx90a`. */
export function gfxName(text: string | undefined): string | undefined {
  return /\bgfx[1-9][0-9a-f]{2,4}\b/.exec(text ?? '')?.[0]
}

/**
 * Converts `gfx_target_version` of the kernel's topology: major × 10000 + minor × 100 + stepping. The name has minor
 * and stepping as one hexadecimal digit each, so 90010 is gfx90a.
 */
export function gfxFromTargetVersion(version: number): string | undefined {
  const [major, minor, step] = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100]
  if (!Number.isInteger(version) || major < 6 || major > 99 || minor > 15 || step > 15) return undefined
  return `gfx${major}${minor.toString(16)}${step.toString(16)}`
}
