import { pciAddress, pciId, vendorFromName } from './pci.ts'
import { type Findings, type Probe, ProbeFailure, programProbe, type Sighting, sighting, toBytes } from './probe.ts'

const MAX_DEVICES = 16

/** Parses `xpu-smi discovery`, with or without `-d`, into devices by number. */
export function parseXpuSmi(text: string): Map<number, Sighting> {
  const devices = new Map<number, Map<string, string>>()
  let fields: Map<string, string> | undefined
  for (const line of text.split(/\r?\n/)) {
    const match = /^[\s|]*?(?:(\d{1,3})[\s|]+)?([A-Z][\w ]*?):\s*(.*?)[\s|]*$/.exec(line)
    if (!match) continue
    if (match[1] !== undefined) {
      fields = new Map()
      devices.set(Number(match[1]), fields)
    }
    fields?.set(match[2]!.toLowerCase(), match[3]!)
  }
  const sightings = new Map<number, Sighting>()
  for (const [id, found] of devices) {
    const name = found.get('device name')
    if (vendorFromName(found.get('vendor name') ?? name ?? '') !== 'intel') continue
    const type = /discrete|integrated/i.exec(found.get('device type') ?? '')?.[0].toLowerCase()
    const size = /^(\d{1,9}(?:\.\d+)?) MiB/.exec(found.get('memory physical size') ?? '')?.[1]
    sightings.set(
      id,
      sighting({
        vendor: 'intel',
        name,
        type: type as Sighting['type'],
        pciId: pciId(found.get('pci device id')),
        pciBus: pciAddress(found.get('pci bdf address')),
        totalMemory: toBytes(size, 2 ** 20),
        driver: { version: found.get('driver version') },
        usable: true
      })
    )
  }
  return sightings
}

export const xpuSmi: Probe = {
  name: 'xpu-smi',
  platforms: ['linux', 'win32'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('xpu-smi', ['discovery'])
    const devices = parseXpuSmi(stdout)
    if (devices.size === 0 && !/no device/i.test(stdout)) {
      throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no device in the output of xpu-smi')
    }
    for (const id of [...devices.keys()].slice(0, MAX_DEVICES)) {
      const details = parseXpuSmi((await machine.run('xpu-smi', ['discovery', '-d', String(id)])).stdout).get(id)
      devices.set(id, { ...devices.get(id)!, ...details })
    }
    return { gpus: [...devices.values()] }
  }
}

/**
 * Parses the Level Zero GPUs in oneAPI's `sycl-ls`, which lists each GPU again for OpenCL. A line is
 * `[level_zero:gpu][level_zero:0] <platform>, <name> <version> [<driver>]`. Older versions use other brackets.
 */
export function parseSyclLs(text: string): Sighting[] {
  const line = /^\[(?:ext_oneapi_)?level_zero:gpu(?::\d+)?\].*?, (.+?)(?: \d[\d.]*)? \[([\d.]+)[^\]]*\]\s*$/gm
  const gpus = [...text.matchAll(line)].filter(([, name]) => vendorFromName(name!) === 'intel')
  return gpus.map(([, name, version]) =>
    sighting({
      vendor: 'intel',
      name,
      // GPUs without a name are listed by their id: `Intel(R) Graphics [0xe223]`.
      pciId: pciId(/\[(0x[0-9a-f]{4})\]$/.exec(name!)?.[1]),
      driver: { version },
      api: 'sycl',
      usable: true
    })
  )
}

export const syclLs = programProbe('sycl-ls', ['linux', 'win32'], ['sycl-ls'], parseSyclLs)
