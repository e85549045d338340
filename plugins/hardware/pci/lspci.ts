import { type Findings, known, type Sighting } from '../findings.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { pciAddress, pciId, vendorOfId, vendorOfName } from './address.ts'
import { soldAs } from './pci-names.ts'

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
