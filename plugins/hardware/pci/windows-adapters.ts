import { type Findings, known, type Sighting } from '../findings.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { pciId, vendorOfId } from './address.ts'

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
