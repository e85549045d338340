import { freemem, totalmem } from 'node:os'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { appleMemory } from '../apple/sysctl.ts'
import type { Machine } from '../machine.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { limitingGroups, withinLimits } from './cgroup.ts'
import { type MachineMemory, parseMeminfo, parseVmStat } from './meminfo.ts'

const ownMemory = (root: string): MachineMemory | undefined =>
  root === '' ? { total: totalmem(), available: freemem() } : undefined

async function macMemory(machine: Machine): Promise<MachineMemory | undefined> {
  const ask = async (program: string, ...args: string[]) => {
    try {
      return (await machine.run(program, args)).stdout
    } catch (error) {
      if (error instanceof ProbeFailure) return ''
      throw error
    }
  }
  const [size, pages] = await Promise.all([ask('sysctl', '-n', 'hw.memsize'), ask('vm_stat')])
  const total = appleMemory(size)
  if (total === undefined) return undefined
  return { total, available: Math.min(total, parseVmStat(pages) ?? total) }
}

/** Memory of the machine now, within the limits of control groups; undefined where no source tells. */
export async function readMemory(machine: Machine): Promise<Hardware['memory'] | undefined> {
  const { files, platform, root } = machine
  if (platform === 'darwin') return (await macMemory(machine)) ?? ownMemory(root)
  const meminfo = platform === 'linux' ? parseMeminfo((await files.text('/proc/meminfo')) ?? '') : undefined
  const memory = meminfo ?? ownMemory(root)
  if (memory === undefined) return undefined
  return { total: memory.total, ...withinLimits(memory, platform === 'linux' ? await limitingGroups(files) : []) }
}

export const machineMemory: Probe = {
  name: 'memory',
  async find(machine) {
    const memory = await readMemory(machine)
    if (memory === undefined) throw new ProbeFailure('absent', 'no source tells how much memory there is')
    return { memory }
  }
}
