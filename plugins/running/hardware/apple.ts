import type { Hardware } from '../../../core/contracts/hardware.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { pciId, vendorFromId, vendorFromName } from './pci.ts'
import { defined, programProbe, type Sighting, sighting, toBytes } from './probe.ts'
import { featuresFromSysctl } from './processor.ts'

/** Parses the `key: value` lines of `sysctl`. Some systems print `key = value`. */
export function parseSysctl(text: string): Map<string, string> {
  const lines = text.matchAll(/^([A-Za-z_][\w.]*)[ \t]*[:=][ \t]*(.*?)\s*$/gm)
  return new Map([...lines].map(([, key, value]) => [key!, value!]))
}

/** Describes the processor of a Mac. Returns undefined if its name is missing. */
export function appleProcessor(values: ReadonlyMap<string, string>): Partial<Hardware['cpu']> | undefined {
  const model = values.get('machdep.cpu.brand_string')
  if (!model) return undefined
  const count = (...keys: string[]) =>
    keys.map(key => Number(values.get(key))).find(value => Number.isInteger(value) && value > 0)
  return defined({
    model,
    cores: count('hw.physicalcpu', 'machdep.cpu.core_count'),
    threads: count('hw.logicalcpu', 'machdep.cpu.thread_count'),
    features: featuresFromSysctl(values)
  })
}

// sysctl exits with an error if it does not know one of the keys, but prints the others.
const SYSCTL = ['sysctl', 'machdep.cpu', 'hw.physicalcpu', 'hw.logicalcpu', 'hw.optional'] as const

export const appleCpu = programProbe('sysctl', ['darwin'], [...SYSCTL], stdout => {
  const cpu = appleProcessor(parseSysctl(stdout))
  return cpu && { cpu }
})

/** Memory in bytes, from `sysctl hw.memsize` or `sysctl -n hw.memsize`. */
export function appleMemory(text: string): number | undefined {
  return toBytes(parseSysctl(text).get('hw.memsize') ?? text.trim())
}

/** Returns the bytes that Metal recommends for the GPU: two thirds of the memory up to 36 GiB, three quarters above. */
export function metalBudget(memory: number): number {
  return Math.floor(memory <= 36 * 2 ** 30 ? (memory * 2) / 3 : (memory * 3) / 4)
}

const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined)

/** Parses `4 GB` and `1536 MB` as binary units. */
function vram(value: string | undefined): number | undefined {
  const match = /^(\d{1,6}(?:\.\d+)?) (GB|MB)$/i.exec(value?.trim() ?? '')
  return match ? toBytes(match[1], match[2]!.toUpperCase() === 'GB' ? 2 ** 30 : 2 ** 20) : undefined
}

/** Parses `system_profiler SPDisplaysDataType -json`. Returns undefined for other text. */
export function parseSystemProfiler(output: string): Sighting[] | undefined {
  const value = parseAnyJson(output)
  const displays = isObject(value) ? value.SPDisplaysDataType : undefined
  if (!Array.isArray(displays)) return undefined
  return displays.flatMap((fields: unknown): Sighting[] => {
    if (!isObject(fields)) return []
    const name = text(fields.sppci_model) ?? text(fields._name)
    if (name === undefined) return []
    // The vendor is `sppci_vendor_Apple` (lower case on older systems), a bare name, name and id, or an id: `Intel
    // (0x8086)`.
    const reported = text(fields.spdisplays_vendor)?.replaceAll('_', ' ') ?? ''
    const id = /0x[0-9a-f]{4}/i.exec(reported)?.[0].toLowerCase()
    const vendors = [vendorFromName(reported), vendorFromId(id), vendorFromName(name)]
    const vendor = vendors.find(each => each !== 'other') ?? 'other'
    const metal = text(fields.spdisplays_mtlgpufamilysupport) ?? text(fields.spdisplays_metal)
    const shared = vendor === 'apple' || vendor === 'intel' || fields.spdisplays_vram_shared !== undefined
    return [
      sighting({
        vendor,
        name: name.trim(),
        type: shared ? 'integrated' : 'discrete',
        unifiedMemory: shared,
        pciId: pciId(text(fields['spdisplays_device-id'])),
        architecture: vendor === 'apple' ? /metal\d+$/.exec(metal ?? '')?.[0] : undefined,
        totalMemory: shared ? undefined : vram(text(fields.spdisplays_vram)),
        api: metal === undefined || /not_?supported/i.test(metal) ? undefined : 'metal',
        usable: true
      })
    ]
  })
}

export const systemProfiler = programProbe(
  'system_profiler',
  ['darwin'],
  ['system_profiler', 'SPDisplaysDataType', '-json'],
  parseSystemProfiler
)
