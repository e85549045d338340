import { access, constants } from 'node:fs/promises'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { amdChip } from './amd-chips.ts'
import { marketingName, pciAddress, pciId, pciName, vendorFromId } from './pci.ts'
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

/* Finds graphics cards in the lists of the operating system: /sys on Linux, lspci, and Windows' display adapters. */

// ---- /sys/bus/pci/devices, and /sys/class/drm for cards with a driver. AMD's driver adds memory
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

const DRM = '/sys/class/drm'
const PCI = '/sys/bus/pci/devices'
/** Unknown chips with less memory than this are treated as integrated. */
const MIN_CARD = 4 * 2 ** 30
const MAX_CARDS = 64

/** Drivers that can compute. NVIDIA's driver can too, but only NVIDIA's tools know whether it works. */
const COMPUTE_DRIVERS: Partial<Record<Sighting['vendor'], string[]>> = { amd: ['amdgpu'], intel: ['i915', 'xe'] }

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
  let usable = driver === 'nvidia' ? undefined : COMPUTE_DRIVERS[vendor]?.includes(driver ?? '') === true
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

async function readCard(files: SystemFiles, folder: string): Promise<CardFiles> {
  const texts = await Promise.all(CARD_FILES.map(async name => [name, await files.text(`${folder}/${name}`)] as const))
  return defined(Object.fromEntries(texts))
}

async function eachCard<Card>(
  files: SystemFiles,
  read: (folder: string, bus: string | undefined) => Promise<Card>
): Promise<Card[]> {
  const names = (await files.names(DRM)).filter(name => /^card\d+$/.test(name)).slice(0, MAX_CARDS)
  const cards = names.map(async name => {
    const folder = `${DRM}/${name}/device`
    return await read(folder, pciAddress((await files.real(folder))?.split(/[\\/]/).at(-1)))
  })
  return await Promise.all(cards)
}

/** Reads the cards with a driver, and their current memory. */
export async function readDrmCards(files: SystemFiles): Promise<Sighting[]> {
  const cards = await eachCard(files, async (folder, bus) => toSighting(await readCard(files, folder), bus))
  return cards.flatMap(card => card ?? [])
}

/** Reads the sensors of AMD's and newer Intel cards (https://docs.kernel.org/gpu/amdgpu/thermal.html). */
export async function readCardSensors(files: SystemFiles) {
  return await eachCard(files, async (folder, bus) => {
    const [sensor] = await files.names(`${folder}/hwmon`)
    const millidegrees = sensor && (await files.text(`${folder}/hwmon/${sensor}/temp1_input`))
    const percent = await files.text(`${folder}/gpu_busy_percent`)
    return {
      pciBus: pciAddress(getField((await files.text(`${folder}/uevent`)) ?? '', 'PCI_SLOT_NAME')) ?? bus,
      ...(/^\d{4,6}\s*$/.test(millidegrees ?? '') && { temperature: Math.round(Number(millidegrees) / 1000) }),
      ...(/^(\d{1,2}|100)\s*$/.test(percent ?? '') && { utilization: Number(percent) / 100 })
    }
  })
}

export const drmCards: Probe = {
  name: 'drm',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const gpus = await readDrmCards(files)
    if (gpus.length === 0) throw new ProbeFailure('absent', `no card in ${DRM}`)
    return { gpus }
  }
}

export const pciDevices: Probe = {
  name: 'pci-devices',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = await files.names(PCI)
    if (names.length === 0) throw new ProbeFailure('absent', `no device in ${PCI}`)
    const gpus: Sighting[] = []
    for (const name of names) {
      // Skips other devices after reading one small file.
      if (!/^\s*0x(03|12)/i.test((await files.text(`${PCI}/${name}/class`)) ?? '')) continue
      const card = toSighting(await readCard(files, `${PCI}/${name}`), pciAddress(name))
      if (card && gpus.length < MAX_CARDS) gpus.push(card)
    }
    if (gpus.length === 0) return { gpus }
    const list = (await files.text('/usr/share/misc/pci.ids')) ?? (await files.text('/usr/share/hwdata/pci.ids'))
    return { gpus: gpus.map(gpu => sighting({ ...gpu, name: pciName(gpu, list ?? '') })) }
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

// ---- lspci

/** Parses the GPUs of `lspci -vmm`. Fields have numbers, or names and numbers: `GP102 [Tesla P40] [1b38]`. */
export function parseLspci(text: string): Sighting[] {
  return text.split(/\r?\n\s*\r?\n/).flatMap((block): Sighting[] => {
    const numberOf = (key: string) => /(?:^|\[)([0-9a-f]{4})\]?$/i.exec(getField(block, key) ?? '')?.[1]
    const vendor = vendorFromId(pciId(numberOf('Vendor')))
    if (vendor === 'other' || !/^(03|12)/.test(numberOf('Class') ?? '')) return []
    const name = /^(.+?)\s*\[[0-9a-f]{4}\]$/i.exec(getField(block, 'Device') ?? '')?.[1]
    const driver = getField(block, 'Driver')
    return [
      sighting({
        vendor,
        pciBus: pciAddress(getField(block, 'Slot')),
        pciId: pciId(numberOf('Device')),
        name: name === undefined ? undefined : marketingName(vendor, name),
        driver: driver === undefined ? undefined : { name: driver },
        usable: /^(nouveau|radeon|vfio-pci|pci-stub)$/.test(driver ?? '') ? false : undefined
      })
    ]
  })
}

export const lspci: Probe = {
  name: 'lspci',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    // A recording has a /sys of its own.
    const source = machine.root === '' ? [] : ['-A', 'linux-sysfs', '-O', `sysfs.path=${machine.root}/sys/bus/pci`]
    const { stdout, failure } = await machine.run('lspci', [...source, '-vmmnnDk'])
    if (failure !== undefined && stdout.trim() === '') throw new ProbeFailure('failed', failure)
    return { gpus: parseLspci(stdout) }
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
