import { type Findings, known, type Sighting } from '../findings.ts'
import { pciId, vendorOfName } from '../pci/address.ts'
import { type Probe, ProbeFailure } from '../probe.ts'

/**
 * The GPUs of Intel that `sycl-ls` of oneAPI lists, those of Level Zero: it lists them a second time for OpenCL. A line
 * is `[level_zero:gpu][level_zero:0] <platform>, <name> <version> [<driver>]`, in older versions with other brackets.
 */
export function parseSyclLs(text: string): Sighting[] {
  return text.split(/\r?\n/).flatMap((line): Sighting[] => {
    const match = /^\[(?:ext_oneapi_)?level_zero:gpu(?::\d+)?\].*?, (.+?)(?: \d[\d.]*)? \[([\d.]+)[^\]]*\]\s*$/.exec(
      line
    )
    if (!match || vendorOfName(match[1]!) !== 'intel') return []
    // What has no name yet is called by its id: `Intel(R) Graphics [0xe223]`.
    const id = pciId(/\[(0x[0-9a-f]{4})\]$/.exec(match[1]!)?.[1])
    return [
      {
        vendor: 'intel',
        name: match[1]!,
        ...known({ pciId: id }),
        driver: known({ version: match[2] }),
        api: 'sycl',
        usable: true
      }
    ]
  })
}

/** Part of oneAPI, whose libraries SYCL builds need. */
export const syclLs: Probe = {
  name: 'sycl-ls',
  platforms: ['linux', 'win32'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('sycl-ls', [])
    if (failure !== undefined) throw new ProbeFailure('failed', failure)
    return { gpus: parseSyclLs(stdout) }
  }
}
