import type { Gpu } from '../../../core/contracts/hardware.ts'
import type { Sighting } from './probe.ts'
import FACTS from './vendors.json' with { type: 'json' }

/**
 * Normalizes a PCI address to `0000:01:00.0`. Tools print it with more digits, without the domain, or in upper case.
 * Returns undefined for other text.
 */
export function pciAddress(text: string | undefined): string | undefined {
  const match = /^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$/i.exec(text?.trim() ?? '')
  if (!match) return undefined
  const domain = Number.parseInt(match[1] ?? '0', 16)
    .toString(16)
    .padStart(4, '0')
  return `${domain}:${match[2]}:${match[3]}.${match[4]}`.toLowerCase()
}

/** Converts the number that AMD's tools print: the bus is in the upper byte, device and function in the lower. */
export function addressFromLocation(location: number, domain = 0): string | undefined {
  if (!Number.isInteger(location) || location <= 0 || location > 0xffff) return undefined
  const hex = (value: number, digits: number) => value.toString(16).padStart(digits, '0')
  return `${hex(domain, 4)}:${hex(location >> 8, 2)}:${hex((location >> 3) & 31, 2)}.${location & 7}`
}

/** Normalizes `0x73DF`, `73df` or a number to `0x73df`. Returns undefined for anything else. */
export function pciId(value: string | number | undefined): string | undefined {
  const number =
    typeof value === 'number'
      ? value
      : /^\s*(0x)?[0-9a-f]{4}\s*$/i.test(value ?? '')
        ? Number.parseInt(value!, 16)
        : NaN
  return number > 0 && number <= 0xffff ? `0x${number.toString(16).padStart(4, '0')}` : undefined
}

/** Whether a PCI id is in a range of hexadecimal numbers, such as `1900-1901`, or is the only number in it. */
export function isInRange(id: string, range: string): boolean {
  const [number, first, last = first] = [id, ...range.split('-')].map(text => Number.parseInt(text, 16)) as number[]
  return number! >= first! && number! <= last!
}

interface VendorFacts {
  vendor: Gpu['vendor']
  title: string
  /** PCI vendor ids. */
  ids: string[]
  /** Patterns of its cards' names, and of the manifests of its Vulkan drivers. */
  names: string
  vulkan: string
  /** Drivers that can compute. NVIDIA's driver can too, but only NVIDIA's tools know whether it works. */
  drivers: string[]
  /** How to install or load the driver. */
  advice?: string
}
export const VENDORS = FACTS as readonly VendorFacts[]
export const vendorFacts = (vendor: Gpu['vendor']) => VENDORS.find(facts => facts.vendor === vendor)

/** Maps a PCI vendor id to a vendor. Display chips of servers and virtual machines are `other`. */
export const vendorFromId = (id: string | undefined): Gpu['vendor'] =>
  VENDORS.find(({ ids }) => ids.includes(id ?? ''))?.vendor ?? 'other'

/** Infers the vendor from a GPU's name, or `other` if the name does not show it. */
export const vendorFromName = (name: string): Gpu['vendor'] =>
  VENDORS.find(({ names }) => new RegExp(names, 'i').test(name))?.vendor ?? 'other'

/** Turns `GP102 [GeForce GTX 1080 Ti]` into `NVIDIA GeForce GTX 1080 Ti`. The brackets contain the product name. */
function marketingName(vendor: Gpu['vendor'], chip: string): string {
  const name = /\[([^\]]+)\]\s*$/.exec(chip)?.[1] ?? chip.trim()
  const maker = vendorFacts(vendor)?.title
  return maker === undefined || name.toLowerCase().includes(maker.toLowerCase()) ? name : `${maker} ${name}`
}

/**
 * Looks up a device in the system's list of PCI ids (https://pci-ids.ucw.cz), which has vendors at the start of a line
 * and their devices after a tab. Returns undefined if the device is not listed.
 */
export function pciName({ vendor, pciId }: Pick<Sighting, 'vendor' | 'pciId'>, list: string): string | undefined {
  const vendorId = vendorFacts(vendor)?.ids[0]
  if (vendorId === undefined || pciId === undefined) return undefined
  const devices = list.split(/^(?=[0-9a-f]{4} )/m).find(block => block.startsWith(`${vendorId.slice(2)} `)) ?? ''
  const device = new RegExp(`^\\t${pciId.slice(2)} +(\\S.*)`, 'm').exec(devices)?.[1]
  return device === undefined ? undefined : marketingName(vendor, device)
}
