import { basename } from 'node:path'
import { findExecutable, runTool, ToolError } from '../../core/system/child-process.ts'
import { ProbeFailure } from './probe.ts'
import { type SystemFiles, systemFiles } from './system-files.ts'

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
