import { access, constants } from 'node:fs/promises'
import { amdChip } from './amd-chips.ts'
import { bytesOf, type Findings, freeOf, known, ProbeFailure, type Sighting } from './findings.ts'
import type { SystemFiles } from './inspected-machine.ts'
import { pciAddress, pciId, pciName, soldAs, vendorOfId, vendorOfName } from './pci.ts'
import type { Probe } from './probe.ts'

/*
 * Cards as the kernel lists them: PCI devices in /sys/bus/pci/devices, and those with a driver for displays or computing
 * in /sys/class/drm. AMD's driver adds memory (https://docs.kernel.org/gpu/amdgpu/driver-misc.html).
 */

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

/** Text of a device's files. */
export type CardFiles = Partial<Record<(typeof CARD_FILES)[number], string>>

const DRM = '/sys/class/drm'
const PCI = '/sys/bus/pci/devices'
/** Cards with less memory than this, of chips that are not known, are taken for parts of processors. */
const SMALLEST_CARD = 4 * 2 ** 30
const MOST_CARDS = 64

/** Drivers that serve computing. That of NVIDIA does too, but only its own tools tell whether it works. */
const SERVING = { amd: ['amdgpu'], intel: ['i915', 'xe'] } as const

/**
 * Memory of an AMD card, bytes. A GPU within a processor has a small part of the machine's memory for itself and takes
 * more of it as it needs (GTT); one that was given more than that for itself has it as its own.
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
      ...known({ freeMemory: freeOf(vram, vramUsed) })
    }
  }
  const used = vramUsed === undefined || gttUsed === undefined ? undefined : vramUsed + gttUsed
  return {
    type: 'integrated',
    unifiedMemory: true,
    totalMemory: vram + gtt,
    ...known({ freeMemory: freeOf(vram + gtt, used) })
  }
}

/** A device of the kernel's as a sighting; undefined when it is no GPU of a vendor that builds know. */
export function cardOf(files: CardFiles, bus: string | undefined, kind: 'drm' | 'pci'): Sighting | undefined {
  const vendor = vendorOfId(pciId(files.vendor))
  if (vendor === 'other') return undefined
  // 03: displays; 12: processing accelerators, as AMD's Instinct are.
  if (files.class !== undefined && !/^\s*0x(03|12)/i.test(files.class)) return undefined
  if (kind === 'pci' && files.class === undefined) return undefined
  const uevent = (key: string) => new RegExp(`^${key}=(\\S+)\\s*$`, 'm').exec(files.uevent ?? '')?.[1]
  const driver = uevent('DRIVER')
  const serving: readonly string[] = vendor === 'amd' || vendor === 'intel' ? SERVING[vendor] : []
  const id = pciId(files.device)
  let usable: boolean | undefined
  if (driver !== undefined) usable = driver === 'nvidia' ? undefined : serving.includes(driver)
  else if (files.uevent !== undefined) usable = false
  else if (kind === 'drm' && serving.length > 0) usable = true
  return {
    vendor,
    ...known({
      pciId: id,
      pciBus: pciAddress(uevent('PCI_SLOT_NAME')) ?? bus,
      driver: driver === undefined ? undefined : { name: driver },
      usable
    }),
    ...(vendor === 'amd' ? amdMemory(files, id) : {})
  }
}

/** The files of one device. */
export async function readCard(files: SystemFiles, folder: string): Promise<CardFiles> {
  const texts = await Promise.all(CARD_FILES.map(async name => [name, await files.text(`${folder}/${name}`)] as const))
  return known(Object.fromEntries(texts))
}

const lastName = (path: string | undefined) => path?.split(/[\\/]/).at(-1)

/** Where each card's device is, by its place on the bus; for reading its memory again. */
export const drmCards: Probe = {
  name: 'drm',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = (await files.names(DRM)).filter(name => /^card\d+$/.test(name)).slice(0, MOST_CARDS)
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
      // Most devices are no displays, and one small file tells.
      if (!/^\s*0x(03|12)/i.test((await files.text(`${PCI}/${name}/class`)) ?? '')) continue
      const card = cardOf(await readCard(files, `${PCI}/${name}`), pciAddress(name), 'pci')
      if (card && gpus.length < MOST_CARDS) gpus.push(card)
    }
    if (gpus.length === 0) return { gpus }
    const list = (await files.text('/usr/share/misc/pci.ids')) ?? (await files.text('/usr/share/hwdata/pci.ids'))
    return { gpus: gpus.map(gpu => ({ ...gpu, ...known({ name: pciName(gpu, list ?? '') }) })) }
  }
}

async function mayOpen(path: string): Promise<boolean> {
  try {
    await access(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Whether this user may open the devices through which AMD and Intel GPUs compute. They belong to groups, and are
 * missing in containers that were not given them.
 */
export const deviceNodes: Probe = {
  name: 'device-nodes',
  platforms: ['linux'],
  async find({ root, files }): Promise<Findings> {
    if (root !== '') throw new ProbeFailure('absent', 'recordings have no devices')
    const nodes = (await files.names('/dev/dri')).filter(name => name.startsWith('renderD'))
    const open = await Promise.all(nodes.map(name => mayOpen(`/dev/dri/${name}`)))
    if (open.includes(true)) return { detail: `${nodes.length} in /dev/dri` }
    const detail = nodes.length === 0 ? 'none in /dev/dri' : `those in /dev/dri may not be opened: ${nodes.join(', ')}`
    return { noDeviceAccess: true, detail }
  }
}

/*
 * What lspci prints, in the forms that people and tools ask for: blocks of fields (-vmm, with names, numbers or both), or
 * a line for each device (with or without numbers).
 */

const DISPLAY_CLASS = /^(03|12)/
const DISPLAY_WORDS = /VGA compatible|3D controller|Display controller|Processing accelerators/i

/** Name and number of `GP102 [GeForce GTX 1080 Ti] [1b06]`, of `1b06`, or of a bare name. */
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
      ...known({
        pciBus: pciAddress(device.slot),
        pciId: pciId(chip.id),
        name: chip.name === undefined || chip.name === '' ? undefined : soldAs(vendor, chip.name),
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
  // The vendor stands before the chip, and ends in a bracket where AMD is concerned.
  const chip = /^(?:.*?(?:Corporation|\[AMD\/ATI\]|Inc\.))\s+(.*)$/.exec(words)?.[1]
  return sightingOf({
    slot,
    deviceClass: classId ?? className,
    vendor: known({ name: words, id: ids?.[2] }),
    chip: known({ name: chip, id: ids?.[3] })
  })
}

/** The GPUs that lspci lists, in any of its forms. */
export function parseLspci(text: string): Sighting[] {
  return /^Slot:/m.test(text) ? fromBlocks(text) : text.split(/\r?\n/).flatMap(fromLine)
}

export const lspci: Probe = {
  name: 'lspci',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    // A recording has its own /sys, which lspci can be told.
    const place = machine.root === '' ? [] : ['-A', 'linux-sysfs', '-O', `sysfs.path=${machine.root}/sys/bus/pci`]
    const { stdout, failure } = await machine.run('lspci', [...place, '-vmmnnDk'])
    if (failure !== undefined && stdout.trim() === '') throw new ProbeFailure('failed', failure)
    return { gpus: parseLspci(stdout) }
  }
}

/** What Windows is asked; its own number of bytes of memory is left out, since it ends at 4 GiB. */
const QUESTION =
  'Get-CimInstance Win32_VideoController | Select-Object Name,PNPDeviceID,DriverVersion,ConfigManagerErrorCode | ' +
  'ConvertTo-Json -Compress'

/** The display adapters that Windows lists, as JSON: one object, or a list. Undefined when it is no JSON. */
export function parseAdapters(text: string): Sighting[] | undefined {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  return [value].flat().flatMap((adapter: unknown): Sighting[] => {
    if (typeof adapter !== 'object' || adapter === null) return []
    const { Name, PNPDeviceID, DriverVersion, ConfigManagerErrorCode } = adapter as Record<string, unknown>
    const ids = /^PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})/i.exec(String(PNPDeviceID))
    const vendor = vendorOfId(pciId(ids?.[1]))
    if (vendor === 'other' || typeof Name !== 'string') return []
    return [
      {
        vendor,
        name: Name,
        ...known({
          pciId: pciId(ids?.[2]),
          driver: vendor === 'nvidia' || typeof DriverVersion !== 'string' ? undefined : { version: DriverVersion },
          // 0 is a device that works.
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
    const { stdout, failure } = await machine.run('powershell', ['-NoProfile', '-NonInteractive', '-Command', QUESTION])
    const gpus = parseAdapters(stdout)
    if (gpus) return { gpus }
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'PowerShell printed no JSON')
  }
}
