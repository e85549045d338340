import type { Gpu } from '../../core/contracts/hardware.ts'
import type { Sighting } from './findings.ts'

/**
 * A place on the PCI bus in one spelling, `0000:01:00.0`; tools write it with more digits, without the domain, or in
 * upper case. Undefined when it is none.
 */
export function pciAddress(text: string | undefined): string | undefined {
  const match = /^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$/i.exec(text?.trim() ?? '')
  if (!match) return undefined
  const domain = Number.parseInt(match[1] ?? '0', 16)
    .toString(16)
    .padStart(4, '0')
  return `${domain}:${match[2]}:${match[3]}.${match[4]}`.toLowerCase()
}

/** A place from the number that AMD's tools give: bus in the upper byte, device and function in the lower. */
export function addressOfLocation(location: number, domain = 0): string | undefined {
  if (!Number.isInteger(location) || location <= 0 || location > 0xffff) return undefined
  const hex = (value: number, digits: number) => value.toString(16).padStart(digits, '0')
  return `${hex(domain, 4)}:${hex(location >> 8, 2)}:${hex((location >> 3) & 31, 2)}.${location & 7}`
}

/** An id such as `0x73df`, from `0x73DF`, `73df` or a number; undefined when it is none. */
export function pciId(value: string | number | undefined): string | undefined {
  const number =
    typeof value === 'number'
      ? value
      : /^\s*(0x)?[0-9a-f]{4}\s*$/i.test(value ?? '')
        ? Number.parseInt(value!, 16)
        : NaN
  return number > 0 && number <= 0xffff ? `0x${number.toString(16).padStart(4, '0')}` : undefined
}

const VENDORS: Record<string, Gpu['vendor']> = {
  '0x10de': 'nvidia',
  '0x1002': 'amd',
  '0x8086': 'intel',
  '0x106b': 'apple',
  '0x5143': 'qualcomm',
  '0x17cb': 'qualcomm'
}

/** Vendor of a PCI vendor id; `other` for display chips of servers, virtual machines and the like. */
export function vendorOfId(id: string | undefined): Gpu['vendor'] {
  return VENDORS[id ?? ''] ?? 'other'
}

/** Vendor by the words of a name; `other` when there are none of them. */
export function vendorOfName(name: string): Gpu['vendor'] {
  if (/nvidia|geforce|quadro|\btesla\b/i.test(name)) return 'nvidia'
  if (/\bamd\b|\bati\b|radeon|advanced micro devices/i.test(name)) return 'amd'
  if (/intel/i.test(name)) return 'intel'
  if (/apple/i.test(name)) return 'apple'
  return /qualcomm|adreno/i.test(name) ? 'qualcomm' : 'other'
}

const VENDOR_IDS: Partial<Record<Sighting['vendor'], string>> = { nvidia: '10de', amd: '1002', intel: '8086' }
const VENDOR_NAMES: Partial<Record<Sighting['vendor'], string>> = { nvidia: 'NVIDIA', amd: 'AMD', intel: 'Intel' }

/** `GP102 [GeForce GTX 1080 Ti]` → `NVIDIA GeForce GTX 1080 Ti`; the brackets hold what it is sold as. */
export function soldAs(vendor: Sighting['vendor'], chip: string): string {
  const name = /\[([^\]]+)\]\s*$/.exec(chip)?.[1] ?? chip.trim()
  const maker = VENDOR_NAMES[vendor]
  return maker === undefined || name.toLowerCase().includes(maker.toLowerCase()) ? name : `${maker} ${name}`
}

/**
 * Name of a device in the list of PCI ids that systems have (https://pci-ids.ucw.cz): vendors at the start of a line,
 * their devices behind a tab. Undefined when it is not in there.
 */
export function pciName({ vendor, pciId }: Pick<Sighting, 'vendor' | 'pciId'>, list: string): string | undefined {
  const vendorId = VENDOR_IDS[vendor]
  if (vendorId === undefined || pciId === undefined) return undefined
  const start = list.startsWith(`${vendorId} `) ? 0 : list.indexOf(`\n${vendorId} `) + 1
  if (start === 0 && !list.startsWith(`${vendorId} `)) return undefined
  const next = /\n[0-9a-f]{4} /g
  next.lastIndex = start + 4
  const devices = list.slice(start, next.exec(list)?.index)
  const device = new RegExp(`\\n\\t${pciId.slice(2)} +(\\S.*)`).exec(devices)?.[1]
  return device === undefined ? undefined : soldAs(vendor, device)
}
