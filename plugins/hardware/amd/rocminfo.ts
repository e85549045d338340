import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import { bytesOf, type Findings, known, type Sighting } from '../findings.ts'
import { addressOfLocation, pciId } from '../pci/address.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { amdChip, gfxName } from './gfx.ts'
import { foldPartitions } from './kfd-topology.ts'

/** The GPU agents of `rocminfo`; processors are agents too. Undefined when there is no agent at all. */
export function parseRocminfo(text: string): Sighting[] | undefined {
  const agents = text.split(/^\s*Agent \d+\s*$/m).slice(1)
  if (agents.length === 0) return undefined
  return agents.flatMap((agent): Sighting[] => {
    const field = (key: string) => new RegExp(`^\\s*${key}:[ \\t]*(\\S.*?)\\s*$`, 'm').exec(agent)?.[1]
    if (field('Device Type') !== 'GPU') return []
    const decimal = (value: string | undefined) => Number(/^\d+/.exec(value ?? '')?.[0] ?? NaN)
    // The first pool that all of the GPU can use; for one without memory of its own it is the machine's.
    const pool = /Segment:\s*GLOBAL[^\n]*COARSE GRAINED[^\n]*\n\s*Size:\s*(\d{1,15})\(/.exec(agent)?.[1]
    const id = pciId(/\((0x[0-9a-f]{4})\)/i.exec(field('Chip ID') ?? '')?.[1])
    const apu = amdChip(id)?.integrated ?? /Memory Properties:[^\n]*\bAPU\b/.test(agent)
    const name = field('Marketing Name')
    return [
      {
        vendor: 'amd',
        ...known({
          name: name === 'N/A' ? undefined : name,
          architecture: gfxName(field('Name')),
          pciId: id,
          pciBus: addressOfLocation(decimal(field('BDFID')), decimal(field('Domain')) || 0),
          type: apu ? ('integrated' as const) : undefined,
          totalMemory: apu || pool === undefined ? undefined : bytesOf(pool, 1024)
        }),
        api: 'rocm',
        usable: true
      }
    ]
  })
}

/** What rocminfo complains of; undefined where it says nothing that is known. */
export function rocminfoProblem(text: string): HardwareProblem | undefined {
  if (/permission denied|not (a )?member of .{0,40}group|unable to open \/dev\/kfd/i.test(text)) {
    return {
      code: 'no_permission',
      subject: 'ROCm',
      message: 'This user may not open /dev/kfd, through which AMD GPUs compute.',
      advice:
        'Run "sudo usermod -aG render,video $USER" and log in again; in a container, start it with ' +
        '"--device /dev/kfd --device /dev/dri".'
    }
  }
  if (/module is NOT loaded/i.test(text)) {
    return {
      code: 'driver_not_loaded',
      subject: 'ROCm',
      message: 'rocminfo is here, but the driver amdgpu is not loaded.',
      advice: 'Load it with "sudo modprobe amdgpu"; "sudo dmesg | grep -i amdgpu" says why it does not start.'
    }
  }
  return undefined
}

export const rocminfo: Probe = {
  name: 'rocminfo',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const { text, failure } = await machine.run('rocminfo', [])
    const gpus = parseRocminfo(text)
    const problem = rocminfoProblem(text)
    const findings = { gpus: foldPartitions(gpus ?? []).gpus, problems: problem ? [problem] : [] }
    if (gpus) return findings
    if (problem) throw new ProbeFailure('failed', problem.message, findings)
    throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no agents in what rocminfo printed')
  }
}
