import { freemem, totalmem } from 'node:os'
import { posix } from 'node:path'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { appleMemory } from './apple.ts'
import { bytesOf, ProbeFailure } from './findings.ts'
import type { Machine, SystemFiles } from './inspected-machine.ts'
import type { Probe } from './probe.ts'

/** Memory of a machine in bytes, regardless of limits. */
export interface MachineMemory {
  total: number
  available: number
}

/**
 * Parses /proc/meminfo. `available` is what programs can allocate without swapping, including droppable caches; kernels
 * before 3.14 do not report it, so it is estimated as free memory plus caches. Undefined if it is no such file.
 */
export function parseMeminfo(text: string): MachineMemory | undefined {
  const kib = (key: string) => {
    const match = new RegExp(`^${key}:\\s*(\\d{1,15}) kB\\s*$`, 'm').exec(text)
    return match ? Number(match[1]) * 1024 : undefined
  }
  const total = bytesOf(kib('MemTotal') ?? 0)
  if (total === undefined) return undefined
  const available = kib('MemAvailable') ?? (kib('MemFree') ?? 0) + (kib('Buffers') ?? 0) + (kib('Cached') ?? 0)
  return { total, available: Math.min(available, total) }
}

/** Available bytes of a Mac from the page counts of `vm_stat`; undefined if it is no such output. */
export function parseVmStat(text: string): number | undefined {
  const pageSize = /page size of (\d{1,9}) bytes/.exec(text)?.[1]
  if (pageSize === undefined) return undefined
  const pages = (name: string) =>
    Number(new RegExp(`^Pages ${name}:\\s*(\\d{1,15})\\.?\\s*$`, 'm').exec(text)?.[1] ?? NaN)
  const free = pages('free')
  if (Number.isNaN(free)) return undefined
  const others = ['inactive', 'speculative', 'purgeable'].map(name => pages(name) || 0)
  return Number(pageSize) * others.reduce((sum, count) => sum + count, free)
}

/*
 * Limits of control groups: version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory) and version 1
 * (https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
 */

/** Limit and usage of one control group in bytes. */
export interface GroupMemory {
  limit: number
  /** Without file caches, which the kernel drops under memory pressure. */
  used: number
}

/** A mounted hierarchy with a memory controller, and this process's group in it. */
export interface GroupPath {
  version: 1 | 2
  mount: string
  /** Group within the mount, such as `/system.slice/corral.service`; `/` if unknown. */
  path: string
}

/** Mounted hierarchies that may have a memory controller: folder, and the group that is their root. */
function memoryMounts(mountinfo: string): { version: 1 | 2; mount: string; root: string }[] {
  const mounts: { version: 1 | 2; mount: string; root: string }[] = []
  for (const line of mountinfo.split(/\r?\n/)) {
    // https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
    const match = /^\d+ \d+ \S+ (\S+) (\S+) .*? - (cgroup2?) \S+ (\S+)/.exec(line)
    if (!match) continue
    const [, root, mount, type, options] = match as unknown as [string, string, string, string, string]
    if (type === 'cgroup2') mounts.push({ version: 2, mount, root })
    else if (options.split(',').includes('memory')) mounts.push({ version: 1, mount, root })
  }
  return mounts
}

const USUAL_MOUNTS: ReturnType<typeof memoryMounts> = [
  { version: 2, mount: '/sys/fs/cgroup', root: '/' },
  { version: 1, mount: '/sys/fs/cgroup/memory', root: '/' }
]

/**
 * This process's groups, from /proc/self/cgroup and /proc/self/mountinfo if it is there. In a container the path may lead
 * out of the mount (`/../../x`) or be the host's: then the root of the mount is used.
 */
export function groupPaths(cgroup: string, mountinfo?: string): GroupPath[] {
  const found = memoryMounts(mountinfo ?? '')
  const mounts = found.length > 0 ? found : USUAL_MOUNTS
  const paths: GroupPath[] = []
  for (const line of cgroup.split(/\r?\n/)) {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line)
    if (!match) continue
    const [, controllers, path] = match as unknown as [string, string, string]
    const version = controllers === '' ? 2 : controllers.split(',').includes('memory') ? 1 : undefined
    for (const { mount, root } of mounts.filter(each => each.version === version)) {
      const within =
        root === '/' ? path : path === root ? '/' : path.startsWith(`${root}/`) ? path.slice(root.length) : '/'
      const outside = within.split('/').includes('..')
      paths.push({ version: version!, mount, path: outside ? '/' : posix.normalize(within) })
    }
  }
  return paths
}

/** Folders of the group and its ancestors, whose limits apply too; innermost first. */
export function groupFolders({ mount, path }: GroupPath): string[] {
  const folders = [posix.join(mount, path).replace(/\/$/, '')]
  while (folders.at(-1) !== mount && folders.at(-1)!.startsWith(`${mount}/`))
    folders.push(posix.dirname(folders.at(-1)!))
  return folders
}

const number = (text: string | undefined) =>
  text !== undefined && /^\s*\d{1,20}\s*$/.test(text) ? Number(text) : undefined

/** A limit in bytes; undefined for `max` and for version 1's huge number, which mean no limit. */
function limitOf(text: string | undefined): number | undefined {
  const limit = number(text)
  return limit === undefined || limit >= 2 ** 60 ? undefined : limit
}

/** Limit and usage of one group from its files; undefined if it has no limit. */
export function groupMemory(files: {
  limits: readonly (string | undefined)[]
  usage: string | undefined
  stat: string | undefined
}): GroupMemory | undefined {
  const limits = files.limits.map(limitOf).filter(limit => limit !== undefined)
  if (limits.length === 0) return undefined
  const inactive = /^(?:total_)?inactive_file (\d{1,20})\s*$/m
  // Version 1 reports totals including child groups under separate names.
  const total = /^total_inactive_file (\d{1,20})\s*$/m.exec(files.stat ?? '') ?? inactive.exec(files.stat ?? '')
  return { limit: Math.min(...limits), used: Math.max(0, (number(files.usage) ?? 0) - Number(total?.[1] ?? 0)) }
}

const FILES = {
  1: { limits: ['memory.limit_in_bytes'], usage: 'memory.usage_in_bytes' },
  2: { limits: ['memory.max', 'memory.high'], usage: 'memory.current' }
} as const

/** The control groups that limit the memory of this process. */
export async function limitingGroups(files: SystemFiles): Promise<GroupMemory[]> {
  const cgroup = await files.text('/proc/self/cgroup')
  // A container may hide its group but still mount its limit.
  const paths = groupPaths(cgroup ?? '0::/', await files.text('/proc/self/mountinfo'))
  const groups: GroupMemory[] = []
  for (const path of paths) {
    const { limits, usage } = FILES[path.version]
    for (const folder of groupFolders(path)) {
      const group = groupMemory({
        limits: await Promise.all(limits.map(name => files.text(`${folder}/${name}`))),
        usage: await files.text(`${folder}/${usage}`),
        stat: await files.text(`${folder}/memory.stat`)
      })
      if (group) groups.push(group)
    }
  }
  return groups
}

/** Applies the limits of groups; those no smaller than the machine's memory are ignored. */
export function withinLimits(
  machine: { total: number; available: number },
  groups: readonly GroupMemory[]
): { available: number; limit?: number } {
  const real = groups.filter(group => group.limit < machine.total)
  if (real.length === 0) return { available: machine.available }
  return {
    limit: Math.min(...real.map(group => group.limit)),
    available: Math.min(machine.available, ...real.map(group => Math.max(0, group.limit - group.used)))
  }
}

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

/** Current memory of the machine within the limits of control groups; undefined if unknown. */
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
    if (memory === undefined) throw new ProbeFailure('absent', 'the amount of memory is unknown')
    return { memory }
  }
}
