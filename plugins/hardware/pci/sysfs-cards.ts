import { amdChip } from '../amd/gfx.ts'
import { bytesOf, type Findings, freeOf, known, type Sighting } from '../findings.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import type { SystemFiles } from '../system-files.ts'
import { pciAddress, pciId, vendorOfId } from './address.ts'
import { pciName } from './pci-names.ts'

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
