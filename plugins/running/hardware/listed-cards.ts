import { access, constants } from 'node:fs/promises'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { amdChip } from './amd.ts'
import { pciAddress, pciId, pciName, vendorFacts, vendorFromId } from './pci.ts'
import {
  defined,
  type Findings,
  getField,
  type Probe,
  ProbeFailure,
  programProbe,
  type Sighting,
  type SystemFiles,
  sighting,
  toBytes,
  toFreeMemory
} from './probe.ts'

/* Finds graphics cards in the lists of the operating system: /sys on Linux, and Windows' display adapters. */

// ---- /sys/bus/pci/devices. AMD's driver adds memory
// (https://docs.kernel.org/gpu/amdgpu/driver-misc.html).

const CARD_FILES = [
  'vendor',
  'device',
  'class',
  'uevent',
  'mem_info_vram_total',
  'mem_info_vram_used',
  'mem_info_gtt_total',
  'mem_info_gtt_used'
] as const

export type CardFiles = Partial<Record<(typeof CARD_FILES)[number], string>>

const PCI = '/sys/bus/pci/devices'
/** Unknown chips with less memory than this are treated as integrated. */
const MIN_CARD = 4 * 2 ** 30
const MAX_CARDS = 64

/**
 * Returns the memory of an AMD GPU. An integrated GPU has a small dedicated part of main memory and borrows more (GTT).
 * If it has more dedicated memory than it may borrow, the dedicated memory is its total.
 */
export function amdMemory(files: CardFiles, id: string | undefined): Partial<Sighting> {
  const number = (text: string | undefined) => (/^\s*0\s*$/.test(text ?? '') ? 0 : toBytes(text))
  const [vram, vramUsed] = [toBytes(files.mem_info_vram_total), number(files.mem_info_vram_used)]
  const [gtt, gttUsed] = [toBytes(files.mem_info_gtt_total), number(files.mem_info_gtt_used)]
  if (vram === undefined) return {}
  const integrated = (id && amdChip(id)?.integrated) ?? (vram < MIN_CARD && gtt !== undefined && gtt > vram)
  const borrowed = integrated && gtt !== undefined && gtt >= vram ? gtt : 0
  const usedOfBorrowed = borrowed > 0 ? gttUsed : 0
  const used = vramUsed === undefined || usedOfBorrowed === undefined ? undefined : vramUsed + usedOfBorrowed
  return defined({
    type: integrated ? ('integrated' as const) : ('discrete' as const),
    unifiedMemory: borrowed > 0,
    totalMemory: vram + borrowed,
    freeMemory: toFreeMemory(vram + borrowed, used)
  })
}

/** Describes a device as a sighting. Returns undefined if it is not a GPU of a supported vendor. */
export function toSighting(files: CardFiles, bus: string | undefined): Sighting | undefined {
  const vendor = vendorFromId(pciId(files.vendor))
  // 03: displays. 12: processing accelerators such as AMD's Instinct.
  if (vendor === 'other' || !/^\s*0x(03|12)/i.test(files.class ?? '0x03')) return undefined
  const driver = getField(files.uevent ?? '', 'DRIVER')
  const id = pciId(files.device)
  // Only NVIDIA's own tools know whether its driver works.
  let usable = driver === 'nvidia' ? undefined : vendorFacts(vendor)?.drivers.includes(driver ?? '') === true
  if (files.uevent === undefined) usable = undefined
  return sighting({
    vendor,
    pciId: id,
    pciBus: pciAddress(getField(files.uevent ?? '', 'PCI_SLOT_NAME')) ?? bus,
    driver: driver === undefined ? undefined : { name: driver },
    usable,
    ...(vendor === 'amd' && amdMemory(files, id))
  })
}

/** Reads a card and its current memory. */
export async function readCard(files: SystemFiles, bus: string): Promise<Sighting | undefined> {
  const texts = CARD_FILES.map(async name => [name, await files.text(`${PCI}/${bus}/${name}`)] as const)
  return toSighting(defined(Object.fromEntries(await Promise.all(texts))), pciAddress(bus))
}

/** Reads the sensors of AMD's and newer Intel cards (https://docs.kernel.org/gpu/amdgpu/thermal.html). */
export async function readSensors(files: SystemFiles, bus: string) {
  const [sensor] = await files.names(`${PCI}/${bus}/hwmon`)
  const millidegrees = sensor && (await files.text(`${PCI}/${bus}/hwmon/${sensor}/temp1_input`))
  const percent = await files.text(`${PCI}/${bus}/gpu_busy_percent`)
  return {
    ...(/^\d{4,6}\s*$/.test(millidegrees ?? '') && { temperature: Math.round(Number(millidegrees) / 1000) }),
    ...(/^(\d{1,2}|100)\s*$/.test(percent ?? '') && { utilization: Number(percent) / 100 })
  }
}

async function readCards(files: SystemFiles): Promise<Sighting[]> {
  const names = await files.names(PCI)
  if (names.length === 0) throw new ProbeFailure('absent', `no device in ${PCI}`)
  const gpus: Sighting[] = []
  for (const name of names) {
    // Skips other devices after reading one small file.
    if (!/^\s*0x(03|12)/i.test((await files.text(`${PCI}/${name}/class`)) ?? '')) continue
    const card = await readCard(files, name)
    if (card && gpus.length < MAX_CARDS) gpus.push(card)
  }
  return gpus
}

export const pciDevices: Probe = {
  name: 'pci-devices',
  platforms: ['linux'],
  find: async ({ files }) => ({ gpus: await readCards(files) })
}

/** Names the cards by the system's list of PCI ids, for cards that no other source names. */
export const pciNames: Probe = {
  name: 'pci-ids',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const list = (await files.text('/usr/share/misc/pci.ids')) ?? (await files.text('/usr/share/hwdata/pci.ids'))
    if (list === undefined) throw new ProbeFailure('absent', 'there is no pci.ids')
    const gpus = (await readCards(files)).map(({ vendor, pciId, pciBus }) => ({ vendor, pciId, pciBus }))
    return { gpus: gpus.map(gpu => sighting({ ...gpu, name: pciName(gpu, list) })) }
  }
}

/** Checks whether this user may open the devices of AMD and Intel GPUs. Containers may lack them. */
export const deviceNodes: Probe = {
  name: 'device-nodes',
  platforms: ['linux'],
  async find({ root, files }): Promise<Findings> {
    if (root !== '') throw new ProbeFailure('absent', 'recordings have no device nodes')
    const nodes = (await files.names('/dev/dri')).filter(name => name.startsWith('renderD'))
    const tries = nodes.map(name => access(`/dev/dri/${name}`, constants.R_OK | constants.W_OK))
    const open = (await Promise.allSettled(tries)).some(({ status }) => status === 'fulfilled')
    if (open) return { detail: `${nodes.length} in /dev/dri` }
    const detail = nodes.length === 0 ? 'none in /dev/dri' : `no permission to open ${nodes.join(', ')} in /dev/dri`
    return { noDeviceAccess: true, detail }
  }
}

// ---- Windows

/** Excludes the memory size, which Windows caps at 4 GiB. */
const ADAPTER_QUERY =
  'Get-CimInstance Win32_VideoController | Select-Object Name,PNPDeviceID,DriverVersion,ConfigManagerErrorCode | ' +
  'ConvertTo-Json -Compress'

/** Parses the display adapters of Windows, a JSON object or list. Returns undefined for invalid JSON. */
export function parseAdapters(text: string): Sighting[] | undefined {
  const value = parseAnyJson(text)
  if (value === undefined) return undefined
  return [value].flat().flatMap((adapter: unknown): Sighting[] => {
    if (!isObject(adapter)) return []
    const { Name: name, PNPDeviceID, DriverVersion: version, ConfigManagerErrorCode } = adapter
    const ids = /^PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})/i.exec(String(PNPDeviceID))
    const vendor = vendorFromId(pciId(ids?.[1]))
    if (vendor === 'other' || typeof name !== 'string') return []
    const card = { vendor, name, pciId: pciId(ids?.[2]) }
    // Only NVIDIA's own tools know the version of its driver and whether it works.
    if (vendor === 'nvidia') return [sighting(card)]
    // 0 means that the device works.
    const usable = ConfigManagerErrorCode === 0
    return [sighting({ ...card, driver: typeof version === 'string' ? { version } : undefined, usable })]
  })
}

export const windowsAdapters = programProbe(
  'display-adapters',
  ['win32'],
  ['powershell', '-NoProfile', '-NonInteractive', '-Command', ADAPTER_QUERY],
  parseAdapters
)
