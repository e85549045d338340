import { access, constants } from 'node:fs/promises'
import { isObject } from '../../core/system/json-object.ts'
import { amdChip } from './amd-chips.ts'
import { bytesOf, defined, type Findings, freeOf, ProbeFailure, parseJson, type Sighting } from './findings.ts'
import type { SystemFiles } from './inspected-machine.ts'
import { marketingName, pciAddress, pciId, pciName, vendorOfId, vendorOfName } from './pci.ts'
import type { Probe } from './probe.ts'

/*
 * Graphics cards as the operating system lists them: /sys on Linux, lspci, and Windows' display adapters.
 */

// ---- /sys/bus/pci/devices, and /sys/class/drm for cards with a driver. AMD's driver adds memory
// (https://docs.kernel.org/gpu/amdgpu/driver-misc.html)

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

/** Contents of a device's files. */
export type CardFiles = Partial<Record<(typeof CARD_FILES)[number], string>>

const DRM = '/sys/class/drm'
const PCI = '/sys/bus/pci/devices'
/** Unknown chips with less memory than this count as integrated. */
const SMALLEST_CARD = 4 * 2 ** 30
const MAX_CARDS = 64

/** Drivers that can compute. NVIDIA's can too, but only its own tools know whether it works. */
const COMPUTE_DRIVERS = { amd: ['amdgpu'], intel: ['i915', 'xe'] } as const

/**
 * Memory of an AMD GPU. An integrated GPU has a small dedicated part of main memory and borrows more (GTT); if it was
 * given more dedicated memory than it may borrow, that counts as its own.
 */
export function amdMemory(files: CardFiles, id: string | undefined): Partial<Sighting> {
  const number = (text: string | undefined) => (/^\s*0\s*$/.test(text ?? '') ? 0 : bytesOf(text ?? ''))
  const [vram, vramUsed] = [bytesOf(files.mem_info_vram_total ?? ''), number(files.mem_info_vram_used)]
  const [gtt, gttUsed] = [bytesOf(files.mem_info_gtt_total ?? ''), number(files.mem_info_gtt_used)]
  if (vram === undefined) return {}
  const integrated = (id && amdChip(id)?.integrated) ?? (vram < SMALLEST_CARD && gtt !== undefined && gtt > vram)
  if (!integrated || gtt === undefined || gtt < vram) {
    return {
      type: integrated ? 'integrated' : 'discrete',
      unifiedMemory: false,
      totalMemory: vram,
      ...defined({ freeMemory: freeOf(vram, vramUsed) })
    }
  }
  const used = vramUsed === undefined || gttUsed === undefined ? undefined : vramUsed + gttUsed
  return {
    type: 'integrated',
    unifiedMemory: true,
    totalMemory: vram + gtt,
    ...defined({ freeMemory: freeOf(vram + gtt, used) })
  }
}

/** A device as a sighting; undefined if it is no GPU of a supported vendor. */
export function cardOf(files: CardFiles, bus: string | undefined, kind: 'drm' | 'pci'): Sighting | undefined {
  const vendor = vendorOfId(pciId(files.vendor))
  if (vendor === 'other') return undefined
  // 03: displays; 12: processing accelerators such as AMD's Instinct.
  if (files.class !== undefined && !/^\s*0x(03|12)/i.test(files.class)) return undefined
  if (kind === 'pci' && files.class === undefined) return undefined
  const uevent = (key: string) => new RegExp(`^${key}=(\\S+)\\s*$`, 'm').exec(files.uevent ?? '')?.[1]
  const driver = uevent('DRIVER')
  const computeDrivers: readonly string[] = vendor === 'amd' || vendor === 'intel' ? COMPUTE_DRIVERS[vendor] : []
  const id = pciId(files.device)
  let usable: boolean | undefined
  if (driver !== undefined) usable = driver === 'nvidia' ? undefined : computeDrivers.includes(driver)
  else if (files.uevent !== undefined) usable = false
  else if (kind === 'drm' && computeDrivers.length > 0) usable = true
  return {
    vendor,
    ...defined({
      pciId: id,
      pciBus: pciAddress(uevent('PCI_SLOT_NAME')) ?? bus,
      driver: driver === undefined ? undefined : { name: driver },
      usable
    }),
    ...(vendor === 'amd' ? amdMemory(files, id) : {})
  }
}

/** Reads the files of one device. */
export async function readCard(files: SystemFiles, folder: string): Promise<CardFiles> {
  const texts = await Promise.all(CARD_FILES.map(async name => [name, await files.text(`${folder}/${name}`)] as const))
  return defined(Object.fromEntries(texts))
}

const lastName = (path: string | undefined) => path?.split(/[\\/]/).at(-1)

export const drmCards: Probe = {
  name: 'drm',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = (await files.names(DRM)).filter(name => /^card\d+$/.test(name)).slice(0, MAX_CARDS)
    if (names.length === 0) throw new ProbeFailure('absent', `no card in ${DRM}`)
    const cards = names.map(async name => {
      const folder = `${DRM}/${name}/device`
      return cardOf(await readCard(files, folder), pciAddress(lastName(await files.real(folder))), 'drm')
    })
    return { gpus: (await Promise.all(cards)).flatMap(card => card ?? []) }
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
      // Skip other devices by reading one small file.
      if (!/^\s*0x(03|12)/i.test((await files.text(`${PCI}/${name}/class`)) ?? '')) continue
      const card = cardOf(await readCard(files, `${PCI}/${name}`), pciAddress(name), 'pci')
      if (card && gpus.length < MAX_CARDS) gpus.push(card)
    }
    if (gpus.length === 0) return { gpus }
    const list = (await files.text('/usr/share/misc/pci.ids')) ?? (await files.text('/usr/share/hwdata/pci.ids'))
    return { gpus: gpus.map(gpu => ({ ...gpu, ...defined({ name: pciName(gpu, list ?? '') }) })) }
  }
}

async function canOpen(path: string): Promise<boolean> {
  try {
    await access(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/** Whether this user may open the devices of AMD and Intel GPUs. Containers may lack them. */
export const deviceNodes: Probe = {
  name: 'device-nodes',
  platforms: ['linux'],
  async find({ root, files }): Promise<Findings> {
    if (root !== '') throw new ProbeFailure('absent', 'recordings have no device nodes')
    const nodes = (await files.names('/dev/dri')).filter(name => name.startsWith('renderD'))
    const open = await Promise.all(nodes.map(name => canOpen(`/dev/dri/${name}`)))
    if (open.includes(true)) return { detail: `${nodes.length} in /dev/dri` }
    const detail = nodes.length === 0 ? 'none in /dev/dri' : `no permission to open ${nodes.join(', ')} in /dev/dri`
    return { noDeviceAccess: true, detail }
  }
}

// ---- lspci: blocks of fields (-vmm, with names, numbers or both), or one line per device (with or without numbers)

const DISPLAY_CLASS = /^(03|12)/
const DISPLAY_WORDS = /VGA compatible|3D controller|Display controller|Processing accelerators/i

/** Splits `GP102 [GeForce GTX 1080 Ti] [1b06]`, `1b06` or a bare name. */
function nameAndId(text: string): { name?: string; id?: string } {
  if (/^[0-9a-f]{4}$/i.test(text)) return { id: text }
  const match = /^(.*?)\s*\[([0-9a-f]{4})\]$/i.exec(text)
  return match ? { name: match[1]!, id: match[2]! } : { name: text }
}

function sightingOf(device: {
  slot: string | undefined
  deviceClass: string
  vendor: { name?: string; id?: string }
  chip: { name?: string; id?: string }
  driver?: string | undefined
}): Sighting[] {
  const { deviceClass, chip } = device
  const { id: classId, name: className } = nameAndId(deviceClass)
  if (classId === undefined ? !DISPLAY_WORDS.test(className ?? '') : !DISPLAY_CLASS.test(classId)) return []
  const byId = vendorOfId(pciId(device.vendor.id))
  const vendor = byId === 'other' && device.vendor.id === undefined ? vendorOfName(device.vendor.name ?? '') : byId
  if (vendor === 'other') return []
  return [
    {
      vendor,
      ...defined({
        pciBus: pciAddress(device.slot),
        pciId: pciId(chip.id),
        name: chip.name === undefined || chip.name === '' ? undefined : marketingName(vendor, chip.name),
        driver: device.driver === undefined ? undefined : { name: device.driver },
        usable: /^(nouveau|radeon|vfio-pci|pci-stub)$/.test(device.driver ?? '') ? false : undefined
      })
    }
  ]
}

function fromBlocks(text: string): Sighting[] {
  return text.split(/\r?\n\s*\r?\n/).flatMap(block => {
    const field = (key: string) => new RegExp(`^${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(block)?.[1]
    const [deviceClass, vendor, device] = [field('Class'), field('Vendor'), field('Device')]
    if (deviceClass === undefined || vendor === undefined || device === undefined) return []
    return sightingOf({
      slot: field('Slot'),
      deviceClass,
      vendor: nameAndId(vendor),
      chip: nameAndId(device),
      driver: field('Driver')
    })
  })
}

function fromLine(line: string): Sighting[] {
  const match = /^(\S+) ([^:[]+?)(?: \[([0-9a-f]{4})\])?: (.*?)(?: \(rev [0-9a-f]{2}\))?(?: \(prog-if .*\))?$/i.exec(
    line.trim()
  )
  if (!match || pciAddress(match[1]) === undefined) return []
  const [, slot, className, classId, device] = match as unknown as [string, string, string, string | undefined, string]
  const ids = /^(.*?)\s*\[([0-9a-f]{4}):([0-9a-f]{4})\]$/i.exec(device)
  const words = ids?.[1] ?? device
  // The vendor precedes the chip; AMD's ends in a bracket.
  const chip = /^(?:.*?(?:Corporation|\[AMD\/ATI\]|Inc\.))\s+(.*)$/.exec(words)?.[1]
  return sightingOf({
    slot,
    deviceClass: classId ?? className,
    vendor: defined({ name: words, id: ids?.[2] }),
    chip: defined({ name: chip, id: ids?.[3] })
  })
}

/** Parses the GPUs in any format of lspci. */
export function parseLspci(text: string): Sighting[] {
  return /^Slot:/m.test(text) ? fromBlocks(text) : text.split(/\r?\n/).flatMap(fromLine)
}

export const lspci: Probe = {
  name: 'lspci',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    // For a recording, use its own /sys.
    const source = machine.root === '' ? [] : ['-A', 'linux-sysfs', '-O', `sysfs.path=${machine.root}/sys/bus/pci`]
    const { stdout, failure } = await machine.run('lspci', [...source, '-vmmnnDk'])
    if (failure !== undefined && stdout.trim() === '') throw new ProbeFailure('failed', failure)
    return { gpus: parseLspci(stdout) }
  }
}

// ---- Windows

/** Without the memory size, which Windows caps at 4 GiB. */
const ADAPTER_QUERY =
  'Get-CimInstance Win32_VideoController | Select-Object Name,PNPDeviceID,DriverVersion,ConfigManagerErrorCode | ' +
  'ConvertTo-Json -Compress'

/** Parses the display adapters of Windows, a JSON object or list. Undefined if it is no JSON. */
export function parseAdapters(text: string): Sighting[] | undefined {
  const value = parseJson(text)
  if (value === undefined) return undefined
  return [value].flat().flatMap((adapter: unknown): Sighting[] => {
    if (!isObject(adapter)) return []
    const { Name, PNPDeviceID, DriverVersion, ConfigManagerErrorCode } = adapter
    const ids = /^PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})/i.exec(String(PNPDeviceID))
    const vendor = vendorOfId(pciId(ids?.[1]))
    if (vendor === 'other' || typeof Name !== 'string') return []
    return [
      {
        vendor,
        name: Name,
        ...defined({
          pciId: pciId(ids?.[2]),
          driver: vendor === 'nvidia' || typeof DriverVersion !== 'string' ? undefined : { version: DriverVersion },
          // 0 means that the device works.
          usable: vendor === 'nvidia' ? undefined : ConfigManagerErrorCode === 0
        })
      }
    ]
  })
}

export const windowsAdapters: Probe = {
  name: 'display-adapters',
  platforms: ['win32'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('powershell', [
      '-NoProfile',
      '-NonInteractive',
      '-Command',
      ADAPTER_QUERY
    ])
    const gpus = parseAdapters(stdout)
    if (gpus) return { gpus }
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'PowerShell printed no JSON')
  }
}
