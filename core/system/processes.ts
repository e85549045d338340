import { readdir, readFile } from 'node:fs/promises'
import { isSystemError } from '../errors.ts'
import { toolEnvironment } from './tool-environment.ts'

/** The start time of a running process on systems that do not report it. */
const UNKNOWN_START = 'unknown'

/**
 * When a process started, as text that is only good for comparing: with its process id it identifies a process
 * permanently, since ids are reused. Undefined if no such process runs. A zombie does not run.
 */
export async function processStartTime(pid: number): Promise<string | undefined> {
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined
  if (process.platform === 'linux') return linuxStartTime(pid)
  if (!isAlive(pid)) return undefined
  return process.platform === 'win32' ? windowsStartTime(pid) : unixStartTime(pid)
}

/** Whether the process with this id and start (from `processStartTime`) still runs; true if unknown. */
export async function isSameProcess(pid: number, startTime: string): Promise<boolean> {
  const now = await processStartTime(pid)
  return now !== undefined && (now === startTime || now === UNKNOWN_START || startTime === UNKNOWN_START)
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    // EPERM: it runs, under another user.
    return isSystemError(error, 'EPERM')
  }
}

/** Clock ticks since boot, with the boot's id. The time of the boot changes when the clock is set. */
async function linuxStartTime(pid: number): Promise<string | undefined> {
  const boot = readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '')
  const fields = await statFields(pid)
  const [state] = fields
  const start = fields[19]
  // Without /proc (or if it is hidden from this user), only whether it runs is known.
  if (start === undefined || (await boot) === '') return isAlive(pid) ? UNKNOWN_START : undefined
  return /[ZX]/.test(state!) ? undefined : `${(await boot).trim()} ${start}`
}

/** The fields of `/proc/<pid>/stat` after the second one. */
async function statFields(pid: number): Promise<string[]> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')
  // The second field is the program's name in parentheses, which may contain spaces and parentheses itself.
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
}

/** Linux reports processor time in these units, independent of the kernel's own rate (`USER_HZ`). */
const MS_PER_TICK = 10

/** Returns the milliseconds that a process and its threads have run. Undefined except on Linux. */
export async function processorTime(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const [user, system] = (await statFields(pid)).slice(11, 13)
  return system === undefined ? undefined : (Number(user) + Number(system)) * MS_PER_TICK
}

async function unixStartTime(pid: number): Promise<string | undefined> {
  const match = /^(\S+)\s+(.+)$/.exec(await ask('ps', ['-o', 'stat=,lstart=', '-p', String(pid)]))
  if (!match) return isAlive(pid) ? UNKNOWN_START : undefined
  return match[1]!.startsWith('Z') ? undefined : match[2]!
}

async function windowsStartTime(pid: number): Promise<string | undefined> {
  const { findExecutable } = await import('./child-process.ts')
  const script = `(Get-Process -Id ${pid}).StartTime.ToFileTimeUtc()`
  // The full path, because Windows searches the working directory first.
  const program = findExecutable('powershell.exe') ?? 'powershell.exe'
  const start = await ask(program, ['-NoProfile', '-NonInteractive', '-Command', script])
  return start || (isAlive(pid) ? UNKNOWN_START : undefined)
}

/** A program's output without surrounding blanks; empty if it fails. */
async function ask(program: string, args: string[]): Promise<string> {
  const { execa } = await import('execa')
  // Otherwise week days and months are in the user's language.
  const env = { ...toolEnvironment(process.env), LC_ALL: 'C' }
  const { stdout, failed } = await execa(program, args, { reject: false, windowsHide: true, env, extendEnv: false })
  return failed ? '' : (stdout?.trim() ?? '')
}

/** Parses `smaps_rollup` or `status`. `resident` includes mapped files, `own` does not. Shared memory is divided. */
export function parseProcessMemory(text: string): { resident: number; own: number } | undefined {
  const kilobytes = (name: string) => {
    const match = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)
    return match ? Number(match[1]) * 1024 : undefined
  }
  const resident = kilobytes('Pss') ?? kilobytes('VmRSS')
  const anonymous = kilobytes('Pss_Anon') ?? kilobytes('Anonymous') ?? kilobytes('RssAnon')
  if (resident === undefined || anonymous === undefined) return undefined
  return { resident, own: anonymous + (kilobytes('Pss_Shmem') ?? kilobytes('RssShmem') ?? 0) }
}

/**
 * The memory of a process; undefined if the system does not report it, or the process has ended.
 * @param files `status` alone is cheaper, but does not divide what processes share
 */
export async function processMemory(pid: number | undefined, files = ['smaps_rollup', 'status']) {
  if (pid === undefined || process.platform !== 'linux') return undefined
  for (const file of files) {
    const text = await readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')
    const memory = parseProcessMemory(text)
    if (memory) return memory
  }
  return undefined
}

/** The bytes that the processes of a group use, without mapped files; undefined except on Linux. */
export async function groupMemory(group: number): Promise<number | undefined> {
  if (process.platform !== 'linux') return undefined
  const pids = (await readdir('/proc')).filter(name => /^\d+$/.test(name))
  const sizes = await Promise.all(
    pids.map(async pid => {
      const [, , found] = await statFields(Number(pid))
      return Number(found) === group ? ((await processMemory(Number(pid)))?.own ?? 0) : 0
    })
  )
  return sizes.reduce((sum, size) => sum + size, 0)
}
