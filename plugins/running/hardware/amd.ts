import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { amdChip, gfxFromTargetVersion, gfxName } from './amd-chips.ts'
import { addressFromLocation, marketingName, pciAddress, pciId, vendorFromId } from './pci.ts'
import {
  type Findings,
  getField,
  type Probe,
  ProbeFailure,
  programProbe,
  type Sighting,
  sighting,
  toBytes,
  toFreeMemory
} from './probe.ts'

/* AMD's GPUs, from the kernel's compute devices, rocminfo, rocm-smi and amd-smi. */

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

// ---- rocm-smi: JSON or CSV, with field names that differ from version to version

type Cards = Map<string, Map<string, string>>

function sightingOf(fields: ReadonlyMap<string, string>): Sighting {
  const field = (...names: string[]) =>
    names
      .map(name => fields.get(name.toLowerCase()))
      .find(value => value !== undefined && value !== '' && value !== 'N/A')
  const totalMemory = toBytes(field('VRAM Total Memory (B)'))
  const used = field('VRAM Total Used Memory (B)')
  const name = field('Card Series', 'Device Name', 'Card series', 'Product Name')
  return sighting({
    vendor: 'amd',
    // Some versions print the id instead of a name.
    name: name !== undefined && !/^0x/i.test(name) ? marketingName('amd', name) : undefined,
    pciId: pciId(field('Device ID', 'GPU ID')) ?? pciId(field('Card Model')),
    pciBus: pciAddress(field('PCI Bus')),
    architecture: gfxName(field('GFX Version')),
    totalMemory,
    freeMemory: toFreeMemory(totalMemory, used === '0' ? 0 : toBytes(used)),
    api: 'rocm',
    usable: true
  })
}

/** Reads the cards from JSON, whose values are all strings. Truncated JSON yields its complete fields. */
function jsonCards(text: string): Cards {
  const cards: Cards = new Map()
  for (const [, card, fields] of text.matchAll(/"((?:card|gpu)\d+)":\s*\{([^{}]*)/gi)) {
    const pairs = [...fields!.matchAll(/"([^"\n]+)":\s*"([^"\n]*)"/g)]
    cards.set(card!, new Map(pairs.map(([, name, value]) => [name!.toLowerCase(), value!])))
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
    // A comma in a name shifts the columns, so the line is skipped.
    if (!/^(card|gpu)\d+$/i.test(cells[0]!) || cells.length !== columns.length) continue
    cards.set(cells[0]!, new Map(columns.map((column, at) => [column, cells[at]!])))
  }
  return cards
}

/** Parses either format. Returns undefined for other text and for truncated JSON. */
export function parseRocmSmi(text: string): Sighting[] | undefined {
  // Warnings may precede the JSON.
  const json = text.slice(text.indexOf('{'), text.lastIndexOf('}') + 1)
  const cards = isObject(parseAnyJson(json)) ? jsonCards(json) : csvCards(text)
  if (!cards) return undefined
  const inOrder = [...cards].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
  return inOrder.map(([, fields]) => sightingOf(fields))
}

/** Finds the cards in broken JSON by their complete fields. Memory figures from broken JSON are not trusted. */
export function cardsInBrokenJson(text: string): Sighting[] {
  return [...jsonCards(text).values()]
    .map(fields => sighting({ ...sightingOf(fields), totalMemory: undefined, freeMemory: undefined }))
    .filter(({ pciId, pciBus }) => pciId !== undefined || pciBus !== undefined)
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

/** Parses `amd-smi static`, whose sections are indented. Returns undefined if it lists no card. */
export function parseAmdSmi(text: string): Sighting[] | undefined {
  const blocks = text.split(/^GPU: \d+\s*$/m).slice(1)
  if (blocks.length === 0) return undefined
  return blocks.flatMap((block): Sighting[] => {
    const field = (title: string, key: string) => {
      const section = new RegExp(`^ {1,4}${title}:\\s*\\r?\\n((?: {5,}\\S.*(?:\\r?\\n|$))*)`, 'm').exec(block)?.[1]
      const value = getField(section ?? '', key)
      return value === 'N/A' ? undefined : value
    }
    const vendor = field('ASIC', 'VENDOR_ID')
    if (vendor !== undefined && vendorFromId(pciId(vendor)) !== 'amd') return []
    const name = field('ASIC', '(?:MARKET_NAME|Market Name)')
    const driver = { name: field('DRIVER', 'NAME'), version: field('DRIVER', 'VERSION') }
    // Virtual machines may use a driver other than amdgpu.
    const usable = driver.name === undefined || driver.name === 'amdgpu'
    return [
      sighting({
        vendor: 'amd',
        name: name === undefined ? undefined : marketingName('amd', name),
        pciId: pciId(field('ASIC', 'DEVICE_ID')),
        pciBus: pciAddress(field('BUS', 'BDF')),
        architecture: gfxName(field('ASIC', 'TARGET_GRAPHICS_VERSION')),
        totalMemory: toBytes(/^(\d{1,9}) MB$/.exec(field('VRAM', 'SIZE') ?? '')?.[1], 2 ** 20),
        driver: driver.name === undefined ? undefined : driver,
        api: usable ? 'rocm' : undefined,
        usable
      })
    ]
  })
}

export const amdSmi = programProbe('amd-smi', ['linux'], ['amd-smi', 'static'], parseAmdSmi)
