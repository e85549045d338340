import type { Sighting } from '../findings.ts'

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
