import { cpus } from 'node:os'
import { appleProcessor, parseSysctl } from '../apple/sysctl.ts'
import type { Findings } from '../findings.ts'
import type { Machine } from '../machine.ts'
import { type Probe, ProbeFailure } from '../probe.ts'
import { parseCpuinfo, parseLscpu } from './cpuinfo.ts'

const SYSCTL_KEYS = ['machdep.cpu', 'hw.physicalcpu', 'hw.logicalcpu', 'hw.optional']

/** /proc/cpuinfo; lscpu where that has no name, as on ARM, and for recordings that have no such file. */
export const linuxCpu: Probe = {
  name: 'cpuinfo',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const cpu = parseCpuinfo((await machine.files.text('/proc/cpuinfo')) ?? '')
    if (cpu?.model !== undefined) return { cpu }
    const place = machine.root === '' ? [] : ['-s', machine.root]
    const listed = parseLscpu(
      await machine.run('lscpu', place).then(
        ({ stdout }) => stdout,
        () => ''
      )
    )
    if (!cpu && !listed) throw new ProbeFailure('absent', 'neither /proc/cpuinfo nor lscpu tells of a processor')
    return { cpu: { ...listed, ...cpu } }
  }
}

export const appleCpu: Probe = {
  name: 'sysctl',
  platforms: ['darwin'],
  async find(machine): Promise<Findings> {
    // It exits with an error when one of the keys is not known to it, and tells the others.
    const { stdout, failure } = await machine.run('sysctl', SYSCTL_KEYS)
    const cpu = appleProcessor(parseSysctl(stdout))
    if (!cpu)
      throw new ProbeFailure(failure ? 'failed' : 'unreadable', failure ?? 'no processor in what sysctl printed')
    return { cpu }
  }
}

/** What Node knows; for systems without a source of their own here. Nothing of a recording. */
export function ownProcessor({ root }: Machine): Findings {
  const list = root === '' ? cpus() : []
  const model = list[0]?.model.trim()
  return list.length === 0 ? {} : { cpu: { threads: list.length, ...(model ? { model } : {}) } }
}
