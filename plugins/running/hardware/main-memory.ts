import { freemem, totalmem } from 'node:os'
import { posix } from 'node:path'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { appleMemory } from './apple.ts'
import { getField, type Machine, optionalOutput, type Probe, ProbeFailure, type SystemFiles, toBytes } from './probe.ts'

type MachineMemory = Pick<Hardware['memory'], 'total' | 'available'>

/**
 * Parses /proc/meminfo. `available` is what programs can allocate without swapping, including droppable caches. Kernels
 * before 3.14 do not report it, so it is estimated as free memory plus caches. Returns undefined for other text.
 */
export function parseMeminfo(text: string): MachineMemory | undefined {
  const kib = (key: string) => {
    const count = /^(\d{1,15}) kB$/.exec(getField(text, key) ?? '')?.[1]
    return count === undefined ? undefined : Number(count) * 1024
  }
  const total = toBytes(kib('MemTotal') ?? 0)
  if (total === undefined) return undefined
  const available = kib('MemAvailable') ?? (kib('MemFree') ?? 0) + (kib('Buffers') ?? 0) + (kib('Cached') ?? 0)
  return { total, available: Math.min(available, total) }
}

/** Computes the available bytes of a Mac from the page counts of `vm_stat`. Returns undefined for other text. */
export function parseVmStat(text: string): number | undefined {
  const pageSize = /page size of (\d{1,9}) bytes/.exec(text)?.[1]
  if (pageSize === undefined) return undefined
  const pages = (name: string) => Number(/^\d{1,15}/.exec(getField(text, `Pages ${name}`) ?? '')?.[0] ?? NaN)
  const free = pages('free')
  if (Number.isNaN(free)) return undefined
  const others = ['inactive', 'speculative', 'purgeable'].map(name => pages(name) || 0)
  return Number(pageSize) * others.reduce((sum, count) => sum + count, free)
}

/** Limit and usage of one control group in bytes (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory). */
export interface GroupMemory {
  limit: number
  /** Excludes file caches, which the kernel drops under memory pressure. */
  used: number
}

const MOUNTS = { 1: '/sys/fs/cgroup/memory', 2: '/sys/fs/cgroup' } as const

/**
 * Returns the folders of this process's control groups and of their ancestors, whose limits apply too, from
 * /proc/self/cgroup. The innermost comes first. In a container, the path may lead out of the mount (`/../../x`) or may
 * be the host's. The mount itself is then the container's group, and folders that do not exist below it limit nothing.
 */
export function groupFolders(cgroup: string): { version: 1 | 2; folder: string }[] {
  return cgroup.split(/\r?\n/).flatMap(line => {
    const [, controllers, path] = /^\d+:([^:]*):(\/.*)$/.exec(line) ?? []
    if (path === undefined || (controllers !== '' && !controllers!.split(',').includes('memory'))) return []
    const version = controllers === '' ? 2 : 1
    const names = path.split('/').includes('..') ? [] : path.split('/').filter(name => name !== '')
    const folders = [...names, ''].map((_, up) => posix.join(MOUNTS[version], ...names.slice(0, names.length - up)))
    return folders.map(folder => ({ version, folder }) as const)
  })
}

const number = (text: string | undefined) =>
  text !== undefined && /^\s*\d{1,20}\s*$/.test(text) ? Number(text) : undefined

/** Parses a limit in bytes. Returns undefined for `max` and for version 1's huge number, which both mean no limit. */
function parseLimit(text: string | undefined): number | undefined {
  const limit = number(text)
  return limit === undefined || limit >= 2 ** 60 ? undefined : limit
}

/** Reads the limit and usage of one group from its files. Returns undefined if it has no limit. */
export function groupMemory(files: {
  limits: readonly (string | undefined)[]
  usage: string | undefined
  stat: string | undefined
}): GroupMemory | undefined {
  const limits = files.limits.map(parseLimit).filter(limit => limit !== undefined)
  if (limits.length === 0) return undefined
  const inactive = /^(?:total_)?inactive_file (\d{1,20})\s*$/m
  // Version 1 reports totals that include child groups under separate names.
  const total = /^total_inactive_file (\d{1,20})\s*$/m.exec(files.stat ?? '') ?? inactive.exec(files.stat ?? '')
  return { limit: Math.min(...limits), used: Math.max(0, (number(files.usage) ?? 0) - Number(total?.[1] ?? 0)) }
}

const FILES = {
  1: { limits: ['memory.limit_in_bytes'], usage: 'memory.usage_in_bytes' },
  2: { limits: ['memory.max', 'memory.high'], usage: 'memory.current' }
} as const

async function limitingGroups(files: SystemFiles): Promise<GroupMemory[]> {
  // A container may hide its group but still mount its limit.
  const folders = groupFolders((await files.text('/proc/self/cgroup')) ?? '0::/')
  const groups = folders.map(async ({ version, folder }) => {
    const names = FILES[version]
    const limits = await Promise.all(names.limits.map(name => files.text(`${folder}/${name}`)))
    // Most groups have no limit, and every load of a model waits for this.
    if (!limits.some(limit => parseLimit(limit) !== undefined)) return undefined
    const [usage, stat] = await Promise.all([`${folder}/${names.usage}`, `${folder}/memory.stat`].map(files.text))
    return groupMemory({ limits, usage, stat })
  })
  return (await Promise.all(groups)).flatMap(group => group ?? [])
}

/** Applies the limits of groups. Ignores limits that are not below the machine's memory. */
export function withinLimits({ total, available }: MachineMemory, groups: readonly GroupMemory[]): Hardware['memory'] {
  const real = groups.filter(group => group.limit < total)
  if (real.length === 0) return { total, available }
  return {
    total,
    available: Math.min(available, ...real.map(group => Math.max(0, group.limit - group.used))),
    limit: Math.min(...real.map(group => group.limit))
  }
}

async function macMemory(machine: Machine): Promise<MachineMemory | undefined> {
  const total = appleMemory(await optionalOutput(machine, 'sysctl', '-n', 'hw.memsize'))
  if (total === undefined) return undefined
  const available = parseVmStat(await optionalOutput(machine, 'vm_stat')) ?? total
  return { total, available: Math.min(total, available) }
}

/** Reads the current memory of the machine within the limits of control groups. Returns undefined if it is unknown. */
export async function readMemory(machine: Machine): Promise<Hardware['memory'] | undefined> {
  const { files, platform, root } = machine
  const own = root === '' ? { total: totalmem(), available: freemem() } : undefined
  if (platform === 'darwin') return (await macMemory(machine)) ?? own
  if (platform !== 'linux') return own
  const [text, groups] = await Promise.all([files.text('/proc/meminfo'), limitingGroups(files)])
  const memory = parseMeminfo(text ?? '') ?? own
  return memory && withinLimits(memory, groups)
}

export const machineMemory: Probe = {
  name: 'memory',
  async find(machine) {
    const memory = await readMemory(machine)
    if (memory === undefined) throw new ProbeFailure('absent', 'the amount of memory is unknown')
    return { memory }
  }
}
