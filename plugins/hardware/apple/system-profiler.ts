import { bytesOf, type Findings, known, type Sighting } from '../findings.ts'
import { pciId, vendorOfId, vendorOfName } from '../pci/address.ts'
import { type Probe, ProbeFailure } from '../probe.ts'

const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined)

/** `4 GB`, `1536 MB`, in binary units. */
function vram(value: string | undefined): number | undefined {
  const match = /^(\d{1,6}(?:\.\d+)?) (GB|MB)$/i.exec(value?.trim() ?? '')
  return match ? bytesOf(match[1], match[2]!.toUpperCase() === 'GB' ? 2 ** 30 : 2 ** 20) : undefined
}

/** The GPUs of `system_profiler SPDisplaysDataType -json`; undefined when it is no such output. */
export function parseSystemProfiler(output: string): Sighting[] | undefined {
  let value: unknown
  try {
    value = JSON.parse(output)
  } catch {
    return undefined
  }
  const displays = (value as { SPDisplaysDataType?: unknown } | null)?.SPDisplaysDataType
  if (!Array.isArray(displays)) return undefined
  return displays.flatMap((display: unknown): Sighting[] => {
    if (typeof display !== 'object' || display === null) return []
    const fields = display as Record<string, unknown>
    const name = text(fields.sppci_model) ?? text(fields._name)
    if (name === undefined) return []
    // `sppci_vendor_Apple`, on older systems in lower case, by itself, with the id, or the id alone: `Intel (0x8086)`.
    const told = text(fields.spdisplays_vendor)?.replaceAll('_', ' ') ?? ''
    const vendors = [vendorOfName(told), vendorOfId(/0x[0-9a-f]{4}/i.exec(told)?.[0].toLowerCase()), vendorOfName(name)]
    const vendor = vendors.find(each => each !== 'other') ?? 'other'
    const metal = text(fields.spdisplays_mtlgpufamilysupport) ?? text(fields.spdisplays_metal)
    const family = /metal\d+$/.exec(metal ?? '')?.[0]
    const totalMemory = vram(text(fields.spdisplays_vram))
    const shared = vendor === 'apple' || vendor === 'intel' || fields.spdisplays_vram_shared !== undefined
    return [
      {
        vendor,
        name: vendor === 'other' ? name : name.trim(),
        type: shared ? 'integrated' : 'discrete',
        unifiedMemory: shared,
        ...known({
          pciId: pciId(text(fields['spdisplays_device-id'])),
          architecture: vendor === 'apple' ? family : undefined,
          totalMemory: shared ? undefined : totalMemory,
          api: metal === undefined || /not_?supported/i.test(metal) ? undefined : ('metal' as const)
        }),
        usable: true
      }
    ]
  })
}

export const systemProfiler: Probe = {
  name: 'system_profiler',
  platforms: ['darwin'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('system_profiler', ['SPDisplaysDataType', '-json'])
    const gpus = parseSystemProfiler(stdout)
    if (gpus) return { gpus }
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'system_profiler printed no JSON of displays')
  }
}
