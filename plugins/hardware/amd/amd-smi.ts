import { bytesOf, type Findings, known, type Sighting } from '../findings.ts'
import { pciAddress, pciId, vendorOfId } from '../pci/address.ts'
import { soldAs } from '../pci/pci-names.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { gfxName } from './gfx.ts'

/** The cards of `amd-smi static`: sections by indentation. Undefined when there is none. */
export function parseAmdSmi(text: string): Sighting[] | undefined {
  const blocks = text.split(/^GPU: \d+\s*$/m).slice(1)
  if (blocks.length === 0) return undefined
  return blocks.flatMap((block): Sighting[] => {
    const section = (title: string) =>
      new RegExp(`^ {1,4}${title}:\\s*\\r?\\n((?: {5,}\\S.*(?:\\r?\\n|$))*)`, 'm').exec(block)?.[1] ?? ''
    const field = (within: string, key: string) => {
      const value = new RegExp(`^\\s+${key}:[ \\t]*(\\S.*?)\\s*$`, 'im').exec(within)?.[1]
      return value === 'N/A' ? undefined : value
    }
    const [asic, driver] = [section('ASIC'), section('DRIVER')]
    const vendor = field(asic, 'VENDOR_ID')
    if (vendor !== undefined && vendorOfId(pciId(vendor)) !== 'amd') return []
    const size = /^(\d{1,9}) MB$/.exec(field(section('VRAM'), 'SIZE') ?? '')?.[1]
    const name = field(asic, 'MARKET[_ ]NAME')
    const driverName = field(driver, 'NAME')
    return [
      {
        vendor: 'amd',
        ...known({
          name: name === undefined ? undefined : soldAs('amd', name),
          pciId: pciId(field(asic, 'DEVICE_ID')),
          pciBus: pciAddress(field(section('BUS'), 'BDF')),
          architecture: gfxName(field(asic, 'TARGET_GRAPHICS_VERSION')),
          totalMemory: bytesOf(size ?? '', 2 ** 20),
          driver: driverName === undefined ? undefined : known({ name: driverName, version: field(driver, 'VERSION') })
        }),
        // It lists what the driver lists; virtual machines may have another one.
        ...(driverName === undefined || driverName === 'amdgpu'
          ? { api: 'rocm' as const, usable: true }
          : { usable: false })
      }
    ]
  })
}

export const amdSmi: Probe = {
  name: 'amd-smi',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const { stdout, failure } = await machine.run('amd-smi', ['static'])
    const gpus = parseAmdSmi(stdout)
    if (gpus) return { gpus }
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no GPU in what amd-smi printed')
  }
}
