import { bytesOf } from '../findings.ts'

/** Bytes of memory of a machine, without regard to limits. */
export interface MachineMemory {
  total: number
  available: number
}

/**
 * What /proc/meminfo tells. Available is what programs can have without swapping, caches that can be dropped included;
 * kernels before 3.14 do not say it, and free memory with the caches comes near. Undefined when it is no such file.
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

/** Bytes that a Mac can give to programs, as `vm_stat` counts its pages; undefined when it is no such output. */
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
