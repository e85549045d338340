import type { HardwareProblem } from '../../core/contracts/hardware.ts'
import { isObject } from '../../core/system/json-object.ts'
import { amdChip, gfxName, gfxOfTargetVersion } from './amd-chips.ts'
import { bytesOf, defined, type Findings, freeOf, ProbeFailure, parseJson, type Sighting } from './findings.ts'
import type { SystemFiles } from './inspected-machine.ts'
import { addressOfLocation, marketingName, pciAddress, pciId, vendorOfId } from './pci.ts'
import type { Probe } from './probe.ts'

/*
 * AMD's GPUs, from the kernel's compute devices, rocminfo, rocm-smi and amd-smi.
 */

// ---- /sys/class/kfd/kfd/topology/nodes/<n> (https://docs.kernel.org/gpu/amdgpu and kfd_topology.c); processors and
// partitions of a card are nodes too

export interface KfdNode {
  properties: string
  /** `properties` and `used_memory` of mem_banks/<n>. */
  banks: readonly { properties: string; used?: string | undefined }[]
}

const NODES = '/sys/class/kfd/kfd/topology/nodes'
/** Frame buffers, visible to the processor or not (HSA_MEM_HEAP_TYPE_FB_PUBLIC, _PRIVATE). */
const FRAME_BUFFERS = [1, 2]
/** Maximum number of nodes read: eight cards with eight partitions, and the processors. */
const MAX_NODES = 128

function numbersOf(text: string): Map<string, number> {
  return new Map(
    [...text.matchAll(/^(\w+) (\d{1,20})\s*$/gm)].map(([, key, value]) => [key!, Number(value)] as [string, number])
  )
}

/** Parses one node; undefined for a processor or invalid properties. */
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
    ...defined({
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
      message: `It is split into ${parts.length} compute partitions, and llama.cpp treats each as a device.`,
      advice: 'For one large model, merge them into one device: "sudo amd-smi set --compute-partition SPX".'
    })
  }
  const sum = (parts: readonly Sighting[], key: 'totalMemory' | 'freeMemory') =>
    parts.every(part => part[key] !== undefined) ? parts.reduce((all, part) => all + part[key]!, 0) : undefined
  const gpus = [...cards.values()].map(parts => ({
    ...parts[0]!,
    ...defined({ totalMemory: sum(parts, 'totalMemory'), freeMemory: sum(parts, 'freeMemory') })
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
    const nodes = await Promise.all(names.slice(0, MAX_NODES).map(name => readNode(files, name)))
    return foldPartitions(nodes.flatMap(node => parseKfdNode(node) ?? []))
  }
}

// ---- rocminfo

/** Parses the GPU agents of `rocminfo`; processors are agents too. Undefined without any agent. */
export function parseRocminfo(text: string): Sighting[] | undefined {
  const agents = text.split(/^\s*Agent \d+\s*$/m).slice(1)
  if (agents.length === 0) return undefined
  return agents.flatMap((agent): Sighting[] => {
    const field = (key: string) => new RegExp(`^\\s*${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(agent)?.[1]
    if (field('Device Type') !== 'GPU') return []
    const decimal = (value: string | undefined) => Number(/^\d+/.exec(value ?? '')?.[0] ?? NaN)
    // The first pool that the whole GPU can use; for an integrated GPU it is main memory.
    const pool = /Segment:\s*GLOBAL[^\n]*COARSE GRAINED[^\n]*\n\s*Size:\s*(\d{1,15})\(/.exec(agent)?.[1]
    const id = pciId(/\((0x[0-9a-f]{4})\)/i.exec(field('Chip ID') ?? '')?.[1])
    const apu = amdChip(id)?.integrated ?? /Memory Properties:[^\n]*\bAPU\b/.test(agent)
    const name = field('Marketing Name')
    return [
      {
        vendor: 'amd',
        ...defined({
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

/** The problem that rocminfo reports, if it is a known one. */
export function rocminfoProblem(text: string): HardwareProblem | undefined {
  if (/permission denied|not (a )?member of .{0,40}group|unable to open \/dev\/kfd/i.test(text)) {
    return {
      code: 'no_permission',
      subject: 'ROCm',
      message: 'This user has no permission to open /dev/kfd, which ROCm needs.',
      advice:
        'Run "sudo usermod -aG render,video $USER" and log in again; in a container, start it with ' +
        '"--device /dev/kfd --device /dev/dri".'
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

// ---- rocm-smi: JSON, CSV or text, with field names that differ from version to version

/** Fields of each card, by card and field name. */
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
    ...defined({
      // Some versions print the id instead of a name.
      name: name !== undefined && !/^0x/i.test(name) ? marketingName('amd', name) : undefined,
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
  // Warnings may precede it.
  const start = text.indexOf('{')
  if (start < 0) return undefined
  const value = parseJson(text.slice(start, text.lastIndexOf('}') + 1))
  if (!isObject(value)) return undefined
  const cards: Cards = new Map()
  for (const [key, fields] of Object.entries(value)) {
    if (!/^(card|gpu)\d+$/i.test(key) || !isObject(fields)) continue
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
    // A comma in a name shifts the columns: skip such a line.
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

/** Parses any of the three formats; undefined if it is none of them, or truncated JSON. */
export function parseRocmSmi(text: string): Sighting[] | undefined {
  const cards = jsonCards(text) ?? csvCards(text) ?? textCards(text)
  if (!cards) return undefined
  const inOrder = [...cards].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
  return inOrder.map(([, fields]) => sightingOf(fields))
}

/** Finds the cards in broken JSON by their complete fields. Their memory figures are not trusted. */
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
    // In some versions the JSON is broken but the CSV is valid.
    for (const form of ['--json', '--csv']) {
      const printed = await machine.run('rocm-smi', [...questions, form])
      const cards = parseRocmSmi(printed.stdout)
      if (cards) return { gpus: foldPartitions(cards).gpus }
      if (gpus.length === 0) gpus = foldPartitions(cardsInBrokenJson(printed.stdout)).gpus
      failure = printed.failure
    }
    const outcome = failure ? 'failed' : 'unreadable'
    throw new ProbeFailure(outcome, failure ?? 'rocm-smi printed neither valid JSON nor CSV', { gpus })
  }
}

// ---- amd-smi

/** Parses `amd-smi static`, whose sections are indented. Undefined without any card. */
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
        ...defined({
          name: name === undefined ? undefined : marketingName('amd', name),
          pciId: pciId(field(asic, 'DEVICE_ID')),
          pciBus: pciAddress(field(section('BUS'), 'BDF')),
          architecture: gfxName(field(asic, 'TARGET_GRAPHICS_VERSION')),
          totalMemory: bytesOf(size ?? '', 2 ** 20),
          driver:
            driverName === undefined ? undefined : defined({ name: driverName, version: field(driver, 'VERSION') })
        }),
        // Virtual machines may have another driver than amdgpu.
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
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no GPU in the output of amd-smi')
  }
}
