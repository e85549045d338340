import { readFile } from 'node:fs/promises'

/** Bytes that a process has in the machine's memory. */
export interface ProcessMemory {
  /** All of it, with the part of mapped files that is in memory; what it shares with others is shared out. */
  resident: number
  /** Without mapped files. */
  own: number
}

/** Reads `smaps_rollup`, or `status` where that is not allowed. Pure. */
export function parseProcessMemory(text: string): ProcessMemory | undefined {
  const kilobytes = (name: string) => {
    const match = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)
    return match ? Number(match[1]) * 1024 : undefined
  }
  const resident = kilobytes('Pss') ?? kilobytes('VmRSS')
  const anonymous = kilobytes('Pss_Anon') ?? kilobytes('Anonymous') ?? kilobytes('RssAnon')
  if (resident === undefined || anonymous === undefined) return undefined
  return { resident, own: anonymous + (kilobytes('Pss_Shmem') ?? kilobytes('RssShmem') ?? 0) }
}

/** What a process has in memory now; undefined where the system does not tell, or the process has gone. */
export async function processMemory(pid: number | undefined): Promise<ProcessMemory | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  for (const file of ['smaps_rollup', 'status']) {
    const text = await readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')
    const memory = parseProcessMemory(text)
    if (memory) return memory
  }
  return undefined
}
