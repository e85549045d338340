import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import { bytesOf, type Findings, freeOf, known, type Sighting } from '../findings.ts'
import { addressOfLocation, pciId, vendorOfId } from '../pci/address.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import type { SystemFiles } from '../system-files.ts'
import { gfxOfTargetVersion } from './gfx.ts'

/*
 * The kernel's list of compute devices of AMD, /sys/class/kfd/kfd/topology/nodes/<n>
 * (https://docs.kernel.org/gpu/amdgpu and kfd_topology.c). Processors are nodes too, and so are partitions of a card.
 */

export interface KfdNode {
  properties: string
  /** Of mem_banks/<n>: its properties and used_memory. */
  banks: readonly { properties: string; used?: string | undefined }[]
}

const NODES = '/sys/class/kfd/kfd/topology/nodes'
/** Frame buffer, visible to the processor or not (HSA_MEM_HEAP_TYPE_FB_PUBLIC, _PRIVATE). */
const FRAME_BUFFERS = [1, 2]
/** Nodes that are read at most: eight cards in eight partitions, and the processors. */
const MOST_NODES = 128

function numbersOf(text: string): Map<string, number> {
  return new Map(
    [...text.matchAll(/^(\w+) (\d{1,20})\s*$/gm)].map(([, key, value]) => [key!, Number(value)] as [string, number])
  )
}

/** One node as a sighting; undefined for a processor and for what is no node. */
export function parseKfdNode({ properties, banks }: KfdNode): Sighting | undefined {
  const values = numbersOf(properties)
  if (!((values.get('simd_count') ?? 0) > 0)) return undefined
  const vendor = values.get('vendor_id')
  if (vendor !== undefined && vendorOfId(pciId(vendor)) !== 'amd') return undefined
  const local = banks
    .map(bank => ({ ...bank, values: numbersOf(bank.properties) }))
    .filter(bank => FRAME_BUFFERS.includes(bank.values.get('heap_type') ?? 0))
  const inBanks = local.reduce((sum, bank) => sum + (bank.values.get('size_in_bytes') ?? 0), 0)
  const totalMemory = bytesOf(inBanks > 0 ? inBanks : (values.get('local_mem_size') ?? 0))
  const used = local.map(bank => (/^\s*\d{1,18}\s*$/.test(bank.used ?? '') ? Number(bank.used) : undefined))
  const allUsed =
    used.length > 0 && used.every(each => each !== undefined) ? used.reduce((a, b) => a + b, 0) : undefined
  return {
    vendor: 'amd',
    ...known({
      pciId: pciId(values.get('device_id')),
      pciBus: addressOfLocation(values.get('location_id') ?? 0, values.get('domain')),
      architecture: gfxOfTargetVersion(values.get('gfx_target_version') ?? 0),
      totalMemory,
      freeMemory: freeOf(totalMemory, allUsed)
    }),
    // Every kernel with amdgpu has this list: it says nothing of whether ROCm is installed.
    driver: { name: 'amdgpu' },
    usable: true
  }
}

/**
 * Cards from nodes: a card in compute partitions shows as many nodes, at the same place on the bus but for the function.
 */
export function foldPartitions(nodes: readonly Sighting[]): { gpus: Sighting[]; problems: HardwareProblem[] } {
  const cards = new Map<string, Sighting[]>()
  for (const [index, node] of nodes.entries()) {
    const place = node.pciBus === undefined ? `node ${index}` : `${node.pciBus.replace(/\.\d$/, '')} ${node.pciId}`
    cards.set(place, [...(cards.get(place) ?? []), node])
  }
  const problems: HardwareProblem[] = []
  for (const [place, parts] of cards) {
    if (parts.length === 1) continue
    problems.push({
      code: 'partitioned',
      subject: `AMD GPU at ${place.split(' ')[0]}`,
      message: `It is split into ${parts.length} compute partitions, each of which llama.cpp takes for a device.`,
      advice: 'For one large model, make it one device: "sudo amd-smi set --compute-partition SPX".'
    })
  }
  const sum = (parts: readonly Sighting[], key: 'totalMemory' | 'freeMemory') =>
    parts.every(part => part[key] !== undefined) ? parts.reduce((all, part) => all + part[key]!, 0) : undefined
  const gpus = [...cards.values()].map(parts => ({
    ...parts[0]!,
    ...known({ totalMemory: sum(parts, 'totalMemory'), freeMemory: sum(parts, 'freeMemory') })
  }))
  return { gpus, problems }
}

async function readNode(files: SystemFiles, name: string): Promise<KfdNode> {
  const folder = `${NODES}/${name}`
  const banks = (await files.names(`${folder}/mem_banks`)).slice(0, 8).map(async bank => ({
    properties: (await files.text(`${folder}/mem_banks/${bank}/properties`)) ?? '',
    used: await files.text(`${folder}/mem_banks/${bank}/used_memory`)
  }))
  return { properties: (await files.text(`${folder}/properties`)) ?? '', banks: await Promise.all(banks) }
}

export const kfdTopology: Probe = {
  name: 'kfd-topology',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = await files.names(NODES)
    if (names.length === 0) throw new ProbeFailure('absent', `there is no ${NODES}`)
    const nodes = await Promise.all(names.slice(0, MOST_NODES).map(name => readNode(files, name)))
    return foldPartitions(nodes.flatMap(node => parseKfdNode(node) ?? []))
  }
}
