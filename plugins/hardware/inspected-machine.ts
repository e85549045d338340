import { open, readdir, realpath, stat } from 'node:fs/promises'
import { basename, join, sep } from 'node:path'
import { findExecutable, runTool, ToolError } from '../../core/system/child-process.ts'
import { ProbeFailure } from './findings.ts'

/** Characters that a program may print; what prints more is broken. */
const MOST_OUTPUT = 4 * 2 ** 20
/** Part of a probe's time that one program may take, so that what came before it is not lost with it. */
const PROGRAM_SHARE = 0.9

/** Where tools lie that are not always on the PATH. */
const MORE_FOLDERS =
  process.platform === 'win32'
    ? ['C:\\Windows\\System32', 'C:\\Program Files\\NVIDIA Corporation\\NVSMI']
    : ['/usr/local/bin', '/usr/bin', '/usr/sbin', '/sbin', '/usr/lib/wsl/lib', '/opt/rocm/bin']

/** What a program printed. */
export interface Printed {
  /** Both streams, standard output first. */
  text: string
  stdout: string
  /** How it failed, where it did: many tell what is wrong and exit with an error. */
  failure?: string
}

/** The machine that is looked at: this one, or a recording of another. */
export interface Machine {
  /** Folder before all system files; empty is this machine. */
  readonly root: string
  readonly platform: string
  readonly arch: string
  readonly files: SystemFiles
  /**
   * Runs a program of the PATH and gives what it printed, whatever its exit code.
   * @throws ProbeFailure when there is none, or it takes too long or prints without end
   */
  run(program: string, args: readonly string[]): Promise<Printed>
}

export interface MachineOptions {
  /** `''` is this machine. */
  root: string
  env: NodeJS.ProcessEnv
  /** Milliseconds that each probe has. */
  limit: number
  /** Ends programs that run. */
  signal?: AbortSignal
}

async function printed(options: MachineOptions, program: string, args: readonly string[]): Promise<Printed> {
  const { env, limit, signal, root } = options
  const path = findExecutable(program, env, root === '' ? MORE_FOLDERS : [])
  if (path === undefined) throw new ProbeFailure('absent', `${program} is not on the PATH`)
  const lines = { stdout: [] as string[], stderr: [] as string[] }
  let size = 0
  const timeout = limit * PROGRAM_SHARE
  const run = runTool(path, args, {
    // Messages are read by their English words.
    env: { ...env, LC_ALL: 'C', LANG: 'C' },
    signal,
    timeout,
    onLine: (line, stream) => {
      size += line.length + 1
      if (size > MOST_OUTPUT) throw new ProbeFailure('unreadable', `${basename(path)} prints without end`)
      lines[stream].push(line)
    }
  })
  let timer: NodeJS.Timeout | undefined
  // A program that waits for a driver in the kernel cannot be ended: nobody waits for its end.
  const stuck = new Promise<never>((_, reject) => {
    const late = () =>
      reject(new ProbeFailure('timed_out', `${basename(path)} gave no answer within ${timeout / 1000} s`))
    timer = setTimeout(late, timeout)
  })
  let failure: string | undefined
  try {
    await Promise.race([run, stuck])
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    if (error.exitCode === undefined && error.exitSignal === undefined) throw new ProbeFailure('failed', error.message)
    failure = error.message
  } finally {
    clearTimeout(timer)
    run.catch(() => {
      // Told above, or nobody waits for it any longer.
    })
  }
  const stdout = lines.stdout.join('\n')
  return {
    stdout,
    text: [stdout, ...lines.stderr].join('\n'),
    ...(failure === undefined ? {} : { failure })
  }
}

/** What a recording is of: the folders that only one system has, else a program that only one system has. */
async function recordedPlatform(files: SystemFiles, env: NodeJS.ProcessEnv): Promise<string> {
  if (await files.exists('/System/Library')) return 'darwin'
  if (await files.exists('/Windows')) return 'win32'
  if (await files.exists('/proc')) return 'linux'
  return findExecutable('system_profiler', env) === undefined ? process.platform : 'darwin'
}

async function recordedArch(files: SystemFiles, platform: string): Promise<string> {
  const cpuinfo = await files.text('/proc/cpuinfo')
  if (cpuinfo === undefined) return platform === 'darwin' ? 'arm64' : process.arch
  if (/^CPU implementer\s*:/m.test(cpuinfo)) return 'arm64'
  return /^vendor_id\s*:\s*(GenuineIntel|AuthenticAMD)/m.test(cpuinfo) ? 'x64' : process.arch
}

/** Opens a machine for looking at it. */
export async function openMachine(options: MachineOptions): Promise<Machine> {
  const { root, env } = options
  const files = systemFiles(root)
  const platform = root === '' ? process.platform : await recordedPlatform(files, env)
  const arch = root === '' ? process.arch : await recordedArch(files, platform)
  return { root, platform, arch, files, run: (program, args) => printed(options, program, args) }
}

/** Bytes of a file that are read at most; the largest that is needed, a list of PCI ids, has 1.5 MB. */
const MOST_READ = 4 * 2 ** 20

/** The files of a machine, by their absolute paths there. What is missing or may not be read is undefined or empty. */
export interface SystemFiles {
  text(path: string): Promise<string | undefined>
  /** Names in a folder, in natural order: `card2` before `card10`. */
  names(folder: string): Promise<string[]>
  exists(path: string): Promise<boolean>
  /** Where links lead, as a path of that machine. */
  real(path: string): Promise<string | undefined>
}

/**
 * @param root folder that holds the machine's files; empty is this machine. With a root, links that lead out of it lead
 * nowhere.
 */
export function systemFiles(root: string): SystemFiles {
  const base = root === '' ? Promise.resolve('') : realpath(root).catch(() => root)

  /** The file of this machine that stands for it. */
  async function place(path: string): Promise<string> {
    const from = await base
    const real = await realpath(join(from, path))
    if (from !== '' && real !== from && !real.startsWith(from.endsWith(sep) ? from : from + sep)) {
      throw new Error(`${path} leads out of ${from}`)
    }
    return real
  }
  const orNothing = async <T>(work: Promise<T>): Promise<T | undefined> => {
    try {
      return await work
    } catch {
      // Absent, or not for this user: no source, that is all.
      return undefined
    }
  }

  async function read(path: string): Promise<string> {
    const file = await open(await place(path), 'r')
    try {
      const pieces: Buffer[] = []
      let size = 0
      // Files of the kernel say that they are empty: they are read until nothing more comes.
      while (size < MOST_READ) {
        const { bytesRead, buffer } = await file.read(Buffer.alloc(65_536), 0, 65_536)
        if (bytesRead === 0) break
        pieces.push(buffer.subarray(0, bytesRead))
        size += bytesRead
      }
      return Buffer.concat(pieces).toString('utf8')
    } finally {
      await file.close()
    }
  }

  return {
    text: path => orNothing(read(path)),
    names: async folder => {
      const names = (await orNothing(place(folder).then(at => readdir(at)))) ?? []
      return names.sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))
    },
    exists: async path => (await orNothing(place(path).then(at => stat(at)))) !== undefined,
    real: async path => {
      const at = await orNothing(place(path))
      return at === undefined ? undefined : at.slice((await base).length)
    }
  }
}
