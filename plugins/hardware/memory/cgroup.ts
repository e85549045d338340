import { posix } from 'node:path'
import type { SystemFiles } from '../system-files.ts'

/*
 * Limits of control groups: version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory) and version 1
 * (https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
 */

/** Limit and usage of one group, bytes. */
export interface GroupMemory {
  limit: number
  /** Without file caches, which the kernel drops when memory runs short. */
  used: number
}

/** A hierarchy of groups that counts memory, and this process's group in it. */
export interface GroupPath {
  version: 1 | 2
  /** Folder of the hierarchy. */
  mount: string
  /** Group within the mount, such as `/system.slice/corral.service`; `/` where it cannot be told. */
  path: string
}

/** The mounts of hierarchies that may count memory: folder, and the group that is seen there as the root. */
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
 * Where this process's groups are, from /proc/self/cgroup and, where there is one, /proc/self/mountinfo. A container
 * may see a path that leads out of what is mounted (`/../../x`), or the path of the host: then what is mounted stands
 * for it.
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

/** The group itself and those around it, whose limits hold too; innermost first. */
export function groupFolders({ mount, path }: GroupPath): string[] {
  const folders = [posix.join(mount, path).replace(/\/$/, '')]
  while (folders.at(-1) !== mount && folders.at(-1)!.startsWith(`${mount}/`))
    folders.push(posix.dirname(folders.at(-1)!))
  return folders
}

const number = (text: string | undefined) =>
  text !== undefined && /^\s*\d{1,20}\s*$/.test(text) ? Number(text) : undefined

/** A limit in bytes; undefined for `max` and for version 1's huge number, which stand for none. */
function limitOf(text: string | undefined): number | undefined {
  const limit = number(text)
  return limit === undefined || limit >= 2 ** 60 ? undefined : limit
}

/** One group's numbers from the text of its files; undefined where nothing limits it. */
export function groupMemory(files: {
  limits: readonly (string | undefined)[]
  usage: string | undefined
  stat: string | undefined
}): GroupMemory | undefined {
  const limits = files.limits.map(limitOf).filter(limit => limit !== undefined)
  if (limits.length === 0) return undefined
  const inactive = /^(?:total_)?inactive_file (\d{1,20})\s*$/m
  // Version 1 counts the groups within under names of their own.
  const total = /^total_inactive_file (\d{1,20})\s*$/m.exec(files.stat ?? '') ?? inactive.exec(files.stat ?? '')
  return { limit: Math.min(...limits), used: Math.max(0, (number(files.usage) ?? 0) - Number(total?.[1] ?? 0)) }
}

const FILES = {
  1: { limits: ['memory.limit_in_bytes'], usage: 'memory.usage_in_bytes' },
  2: { limits: ['memory.max', 'memory.high'], usage: 'memory.current' }
} as const

/** The groups around this process that limit its memory. */
export async function limitingGroups(files: SystemFiles): Promise<GroupMemory[]> {
  const cgroup = await files.text('/proc/self/cgroup')
  // In a container that shows nothing of its group, its limit may be mounted all the same.
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

/** Memory within the limits: those that are no less than the machine has limit nothing. */
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
