import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { cpus, loadavg, release, type as systemName, totalmem } from 'node:os'

export function describeMachine(): string {
  const memory = Math.round(totalmem() / 2 ** 30)
  return `${cpus()[0]!.model.trim()}, ${cpus().length} cores, ${memory} GiB, ${systemName()} ${release()}, Node ${process.versions.node}, load average ${loadavg()[0]!.toFixed(1)}`
}

/** The value that is not exceeded by a share `p` (0 to 1) of the values. NaN if there are none. */
export function percentile(values: readonly number[], p: number): number {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)] ?? Number.NaN
}

export function median(values: readonly number[]): number {
  return percentile(values, 0.5)
}

/** A median, and an interval that contains the true median with a probability of at least 95 %. */
export interface Estimate {
  median: number
  low: number
  high: number
}

/**
 * Uses only the order of the values, so outliers of a busy machine do not matter. Fewer than six values are too few for
 * 95 %, so the interval contains all of them.
 */
export function estimate(values: readonly number[]): Estimate {
  const sorted = Float64Array.from(values).sort()
  const count = sorted.length
  // Probability that at most `below` values are below the true median.
  let below = -1
  for (let share = 0, ways = 1; share + ways / 2 ** count <= 0.025; ways *= (count - below) / (below + 1)) {
    share += ways / 2 ** count
    below++
  }
  const at = Math.max(0, below)
  return { median: median(values), low: sorted[at] ?? Number.NaN, high: sorted[count - 1 - at] ?? Number.NaN }
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

/** Formats a number with three significant digits. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return '-'
  if (Math.abs(value) >= 100) return value.toFixed(0)
  return Number(value.toPrecision(3)).toString()
}

/*
 * Data about other processes from /proc on Linux. Processor times are in clock ticks (10 ms), so they are useful only
 * for differences over seconds.
 */

const MICROSECONDS_PER_TICK = 1e6 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }))

/** Processor time of a process with all its threads in microseconds. */
export function processorTime(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MICROSECONDS_PER_TICK
}

/**
 * Processor time of the current threads in microseconds with nanosecond resolution. Use it for differences over
 * milliseconds, if the threads do not change.
 */
export function threadTime(pid: number): number {
  let nanoseconds = 0
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    try {
      nanoseconds += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0])
    } catch {
      // The thread has ended since the list was read.
    }
  }
  return nanoseconds / 1000
}

/**
 * Time until an idle Node.js process may have released memory. V8 waits about fifteen seconds and does not always do
 * it.
 */
export const REST = 30_000

/** Resident memory of a process in MiB. */
export function residentMemory(pid: number): number {
  const kilobytes = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return Number(kilobytes) / 1024
}

export function readStart(pid: number): { command: string; args: string[]; env: Record<string, string> } {
  const strings = (file: string) => readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').slice(0, -1)
  const [command = '', ...args] = strings('cmdline')
  const env = strings('environ').map(entry => {
    const at = entry.indexOf('=')
    return [entry.slice(0, at), entry.slice(at + 1)] as const
  })
  return { command, args, env: Object.fromEntries(env) }
}

/** Busy and total ticks of all processors since boot, for differences. */
export function machineTicks(): { busy: number; all: number } {
  const fields = readFileSync('/proc/stat', 'utf8').split('\n')[0]!.split(/\s+/).slice(1).map(Number)
  const all = fields.reduce((total, value) => total + value, 0)
  return { busy: all - fields[3]! - fields[4]!, all }
}
