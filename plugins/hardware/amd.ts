import type { HardwareProblem } from '../../core/contracts/hardware.ts'
import { amdChip, gfxName, gfxOfTargetVersion } from './amd-chips.ts'
import { bytesOf, type Findings, freeOf, known, ProbeFailure, type Sighting } from './findings.ts'
import type { SystemFiles } from './inspected-machine.ts'
import { addressOfLocation, pciAddress, pciId, soldAs, vendorOfId } from './pci.ts'
import type { Probe } from './probe.ts'

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

/** The GPU agents of `rocminfo`; processors are agents too. Undefined when there is no agent at all. */
export function parseRocminfo(text: string): Sighting[] | undefined {
  const agents = text.split(/^\s*Agent \d+\s*$/m).slice(1)
  if (agents.length === 0) return undefined
  return agents.flatMap((agent): Sighting[] => {
    const field = (key: string) => new RegExp(`^\\s*${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(agent)?.[1]
    if (field('Device Type') !== 'GPU') return []
    const decimal = (value: string | undefined) => Number(/^\d+/.exec(value ?? '')?.[0] ?? NaN)
    // The first pool that all of the GPU can use; for one without memory of its own it is the machine's.
    const pool = /Segment:\s*GLOBAL[^\n]*COARSE GRAINED[^\n]*\n\s*Size:\s*(\d{1,15})\(/.exec(agent)?.[1]
    const id = pciId(/\((0x[0-9a-f]{4})\)/i.exec(field('Chip ID') ?? '')?.[1])
    const apu = amdChip(id)?.integrated ?? /Memory Properties:[^\n]*\bAPU\b/.test(agent)
    const name = field('Marketing Name')
    return [
      {
        vendor: 'amd',
        ...known({
          name: name === 'N/A' ? undefined : name,
          architecture: gfxName(field('Name')),
          pciId: id,
          pciBus: addressOfLocation(decimal(field('BDFID')), decimal(field('Domain')) || 0),
          type: apu ? ('integrated' as const) : undefined,
          totalMemory: apu || pool === undefined ? undefined : bytesOf(pool, 1024)
        }),
        api: 'rocm',
        usable: true
      }
    ]
  })
}

/** What rocminfo complains of; undefined where it says nothing that is known. */
export function rocminfoProblem(text: string): HardwareProblem | undefined {
  if (/permission denied|not (a )?member of .{0,40}group|unable to open \/dev\/kfd/i.test(text)) {
    return {
      code: 'no_permission',
      subject: 'ROCm',
      message: 'This user may not open /dev/kfd, through which AMD GPUs compute.',
      advice:
        'Run "sudo usermod -aG render,video $USER" and log in again; in a container, start it with ' +
        '"--device /dev/kfd --device /dev/dri".'
    }
  }
  if (/module is NOT loaded/i.test(text)) {
    return {
      code: 'driver_not_loaded',
      subject: 'ROCm',
      message: 'rocminfo is here, but the driver amdgpu is not loaded.',
      advice: 'Load it with "sudo modprobe amdgpu"; "sudo dmesg | grep -i amdgpu" says why it does not start.'
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
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no agents in what rocminfo printed')
  }
}

/* What rocm-smi prints: JSON, CSV or text, each with the same names of fields, which differ from version to version. */

/** Fields of each card, by its name there. */
type Cards = Map<string, Map<string, string>>

function sightingOf(fields: ReadonlyMap<string, string>): Sighting {
  const field = (...names: string[]) =>
    names
      .map(name => fields.get(name.toLowerCase()))
      .find(value => value !== undefined && value !== '' && value !== 'N/A')
  const totalMemory = bytesOf(field('VRAM Total Memory (B)') ?? '')
  const used = field('VRAM Total Used Memory (B)')
  const name = field('Card Series', 'Device Name', 'Card series', 'Product Name')
  return {
    vendor: 'amd',
    ...known({
      // Some versions write the id where a name belongs.
      name: name !== undefined && !/^0x/i.test(name) ? soldAs('amd', name) : undefined,
      pciId: pciId(field('Device ID', 'GPU ID')) ?? pciId(field('Card Model')),
      pciBus: pciAddress(field('PCI Bus')),
      architecture: gfxName(field('GFX Version')),
      totalMemory,
      freeMemory: freeOf(totalMemory, used === '0' ? 0 : bytesOf(used ?? ''))
    }),
    api: 'rocm',
    usable: true
  }
}

function jsonCards(text: string): Cards | undefined {
  // Warnings may stand before it.
  const start = text.indexOf('{')
  if (start < 0) return undefined
  let value: unknown
  try {
    value = JSON.parse(text.slice(start, text.lastIndexOf('}') + 1))
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  const cards: Cards = new Map()
  for (const [key, fields] of Object.entries(value)) {
    if (!/^(card|gpu)\d+$/i.test(key) || typeof fields !== 'object' || fields === null) continue
    cards.set(key, new Map(Object.entries(fields).map(([name, field]) => [name.toLowerCase(), String(field)])))
  }
  return cards
}

function csvCards(text: string): Cards | undefined {
  const lines = text.split(/\r?\n/)
  const start = lines.findIndex(line => /^device,/i.test(line))
  if (start < 0) return undefined
  const columns = lines[start]!.split(',').map(column => column.trim().toLowerCase())
  const cards: Cards = new Map()
  for (const line of lines.slice(start + 1)) {
    const cells = line.split(',').map(cell => cell.trim())
    // A comma in a name moves what follows: nothing of such a line can be trusted.
    if (!/^(card|gpu)\d+$/i.test(cells[0]!) || cells.length !== columns.length) continue
    cards.set(cells[0]!, new Map(columns.map((column, at) => [column, cells[at]!])))
  }
  return cards
}

function textCards(text: string): Cards | undefined {
  const cards: Cards = new Map()
  for (const line of text.split(/\r?\n/)) {
    const match = /^GPU\[(\d+)\]\s*:\s*([^:]+?)\s*:\s*(.*?)\s*$/.exec(line)
    if (!match) continue
    const fields = cards.get(match[1]!) ?? new Map<string, string>()
    cards.set(match[1]!, fields.set(match[2]!.toLowerCase(), match[3]!))
  }
  return cards.size > 0 ? cards : undefined
}

/** The cards in any of its three forms; undefined when it is none of them, or JSON that is cut off. */
export function parseRocmSmi(text: string): Sighting[] | undefined {
  const cards = jsonCards(text) ?? csvCards(text) ?? textCards(text)
  if (!cards) return undefined
  const inOrder = [...cards].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
  return inOrder.map(([, fields]) => sightingOf(fields))
}

/** Which cards there are by JSON that is broken: what stands whole in it names them. Their memory is not believed. */
export function cardsInBrokenJson(text: string): Sighting[] {
  const cards = text.split(/"(?:card|gpu)\d+":\s*\{/).slice(1)
  return cards.flatMap(card => {
    const fields = [...card.matchAll(/"([^"\n]+)":\s*"([^"\n]*)"/g)].map(([, key, value]) => [
      key!.toLowerCase(),
      value!
    ])
    const { totalMemory: _, freeMemory: __, ...sighting } = sightingOf(new Map(fields as [string, string][]))
    return sighting.pciId === undefined && sighting.pciBus === undefined ? [] : [sighting]
  })
}

export const rocmSmi: Probe = {
  name: 'rocm-smi',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const questions = ['--showproductname', '--showid', '--showbus', '--showmeminfo', 'vram']
    let failure: string | undefined
    let gpus: Sighting[] = []
    // JSON of some versions is broken where their CSV is whole.
    for (const form of ['--json', '--csv']) {
      const printed = await machine.run('rocm-smi', [...questions, form])
      const cards = parseRocmSmi(printed.stdout)
      if (cards) return { gpus: foldPartitions(cards).gpus }
      if (gpus.length === 0) gpus = foldPartitions(cardsInBrokenJson(printed.stdout)).gpus
      failure = printed.failure
    }
    const outcome = failure ? 'failed' : 'unreadable'
    throw new ProbeFailure(outcome, failure ?? 'neither JSON nor CSV of rocm-smi can be read', { gpus })
  }
}

/** The cards of `amd-smi static`: sections by indentation. Undefined when there is none. */
export function parseAmdSmi(text: string): Sighting[] | undefined {
  const blocks = text.split(/^GPU: \d+\s*$/m).slice(1)
  if (blocks.length === 0) return undefined
  return blocks.flatMap((block): Sighting[] => {
    const section = (title: string) =>
      new RegExp(`^ {1,4}${title}:\\s*\\r?\\n((?: {5,}\\S.*(?:\\r?\\n|$))*)`, 'm').exec(block)?.[1] ?? ''
    const field = (within: string, key: string) => {
      const value = new RegExp(`^\\s+${key}:[ \\t]*(\\S.*?)\\s*$`, 'im').exec(within)?.[1]
      return value === 'N/A' ? undefined : value
    }
    const [asic, driver] = [section('ASIC'), section('DRIVER')]
    const vendor = field(asic, 'VENDOR_ID')
    if (vendor !== undefined && vendorOfId(pciId(vendor)) !== 'amd') return []
    const size = /^(\d{1,9}) MB$/.exec(field(section('VRAM'), 'SIZE') ?? '')?.[1]
    const name = field(asic, 'MARKET[_ ]NAME')
    const driverName = field(driver, 'NAME')
    return [
      {
        vendor: 'amd',
        ...known({
          name: name === undefined ? undefined : soldAs('amd', name),
          pciId: pciId(field(asic, 'DEVICE_ID')),
          pciBus: pciAddress(field(section('BUS'), 'BDF')),
          architecture: gfxName(field(asic, 'TARGET_GRAPHICS_VERSION')),
          totalMemory: bytesOf(size ?? '', 2 ** 20),
          driver: driverName === undefined ? undefined : known({ name: driverName, version: field(driver, 'VERSION') })
        }),
        // It lists what the driver lists; virtual machines may have another one.
        ...(driverName === undefined || driverName === 'amdgpu'
          ? { api: 'rocm' as const, usable: true }
          : { usable: false })
      }
    ]
  })
}

export const amdSmi: Probe = {
  name: 'amd-smi',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('amd-smi', ['static'])
    const gpus = parseAmdSmi(stdout)
    if (gpus) return { gpus }
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no GPU in what amd-smi printed')
  }
}
