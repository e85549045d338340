import { type Findings, known, type Sighting } from '../findings.ts'
import { pciAddress } from '../pci/address.ts'
import { type Probe, ProbeFailure } from '../probe.ts'

/** Version of the driver that the kernel has loaded, from /proc/driver/nvidia/version. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module\b.*?\s(\d{3,4}(?:\.\d{1,4}){1,2})\b/.exec(text)?.[1]
}

/** A card of /proc/driver/nvidia/gpus/<bus>/information. */
export function parseDriverCard(text: string): { name?: string; pciBus?: string } {
  const field = (key: string) => new RegExp(`^${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(text)?.[1]
  const model = field('Model')
  return known({ name: model === 'Unknown' ? undefined : model, pciBus: pciAddress(field('Bus Location')) })
}

/** What the NVIDIA driver in the kernel says of itself, also where nvidia-smi is missing or broken. */
export const nvidiaDriver: Probe = {
  name: 'nvidia-driver',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const text = await files.text('/proc/driver/nvidia/version')
    if (text === undefined) throw new ProbeFailure('absent', 'there is no /proc/driver/nvidia/version')
    const version = parseDriverVersion(text)
    const gpus: Sighting[] = []
    for (const bus of await files.names('/proc/driver/nvidia/gpus')) {
      const card = parseDriverCard((await files.text(`/proc/driver/nvidia/gpus/${bus}/information`)) ?? '')
      gpus.push({
        vendor: 'nvidia',
        ...known({ pciBus: pciAddress(bus) }),
        ...card,
        driver: known({ name: 'nvidia', version }),
        api: 'cuda',
        usable: true
      })
    }
    if (version === undefined)
      throw new ProbeFailure('unreadable', 'no version in /proc/driver/nvidia/version', { gpus })
    return { gpus, detail: `driver ${version}` }
  }
}
