import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/*
 * What Linux tells of other processes under /proc. Times of a process come in clock ticks (10 ms), so they are only good
 * for differences over seconds.
 */

const MICROSECONDS_PER_TICK = 1e6 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }))

/** Microseconds of processor time that a process with all its threads has used so far. */
export function processorTime(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MICROSECONDS_PER_TICK
}

/** MiB of memory that a process has in RAM. */
export function residentMemory(pid: number): number {
  const kilobytes = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return Number(kilobytes) / 1024
}

/** How a process was started. */
export function startOf(pid: number): { command: string; args: string[]; env: Record<string, string> } {
  const strings = (file: string) => readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').slice(0, -1)
  const [command = '', ...args] = strings('cmdline')
  const env = strings('environ').map(entry => {
    const at = entry.indexOf('=')
    return [entry.slice(0, at), entry.slice(at + 1)] as const
  })
  return { command, args, env: Object.fromEntries(env) }
}

/** Ticks that the processors were busy since boot, and all of them: for differences. */
export function machineTicks(): { busy: number; all: number } {
  const fields = readFileSync('/proc/stat', 'utf8').split('\n')[0]!.split(/\s+/).slice(1).map(Number)
  const all = fields.reduce((total, value) => total + value, 0)
  return { busy: all - fields[3]! - fields[4]!, all }
}
