import { readFile } from 'node:fs/promises'

/** Files in which the Linux kernel counts processes that it killed because memory had run out. */
async function counterFiles(): Promise<string[]> {
  const groups = await readFile('/proc/self/cgroup', 'utf8').catch(() => '')
  const files = ['/proc/vmstat']
  for (const line of groups.split('\n')) {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line)
    // A path with ".." lies outside what this container sees; the root of its mount is its own group then.
    const path = match?.[2]?.includes('..') ? '/' : match?.[2]
    if (!match || path === undefined) continue
    if (match[1] === '') files.push(`/sys/fs/cgroup${path}/memory.events`)
    else if (match[1]!.split(',').includes('memory')) files.push(`/sys/fs/cgroup/memory${path}/memory.oom_control`)
  }
  return files
}

/** How many processes the kernel has killed for memory so far, in the groups of this process and on the machine. */
async function countOomKills(): Promise<number | undefined> {
  if (process.platform !== 'linux') return undefined
  let count: number | undefined
  for (const file of await counterFiles()) {
    const content = await readFile(file, 'utf8').catch(() => '')
    const found = /^oom_kill (\d+)$/m.exec(content)?.[1]
    if (found !== undefined) count = (count ?? 0) + Number(found)
  }
  return count
}

/**
 * Remembers now how often the kernel has killed for memory. The returned function tells whether it did since; undefined
 * where it does not say.
 */
export async function watchOomKills(): Promise<() => Promise<boolean | undefined>> {
  const before = await countOomKills()
  return async () => {
    const after = before === undefined ? undefined : await countOomKills()
    return after === undefined ? undefined : after > before!
  }
}
