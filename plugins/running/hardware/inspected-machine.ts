import { readFileSync } from 'node:fs'
import { readdir, readFile, realpath } from 'node:fs/promises'
import { join, sep } from 'node:path'
import { findExecutable, runTool, ToolError } from '../../../core/system/child-process.ts'
import { type Machine, ProbeFailure, type ProgramOutput, type SystemFiles, timeLimit } from './probe.ts'

/** Characters. A program that prints more is broken. */
const MAX_OUTPUT = 4 * 2 ** 20
/** Share of a probe's time limit that one program gets. A slow program must not lose what the probe has found. */
const PROGRAM_SHARE = 0.9

/** Sorts by the numbers in names: card2 before card10. `Intl` would take 3 MiB of memory for its data. */
function inOrder(names: string[]): string[] {
  // Each key is computed once: library folders have thousands of names, and every start pays for the garbage.
  const keys = new Map(names.map(name => [name, name.replace(/\d+/g, digits => digits.padStart(12, '0'))]))
  return names.sort((a, b) => {
    const [first, second] = [keys.get(a)!, keys.get(b)!]
    return first < second ? -1 : first > second ? 1 : 0
  })
}

/** Folders of tools that may not be on the PATH. */
const MORE_FOLDERS =
  process.platform === 'win32'
    ? ['C:\\Windows\\System32', 'C:\\Program Files\\NVIDIA Corporation\\NVSMI']
    : ['/usr/local/bin', '/usr/bin', '/usr/sbin', '/sbin', '/usr/lib/wsl/lib', '/opt/rocm/bin']

export interface HardwareOptions {
  /** Root folder of a recorded machine. Empty for this machine. */
  sysroot: string
  probeTimeout: number
  env: NodeJS.ProcessEnv
  signal?: AbortSignal
  log?: { debug(object: object, message: string): void }
}

async function runProgram(options: HardwareOptions, program: string, args: readonly string[]): Promise<ProgramOutput> {
  const { env, signal } = options
  const path = findExecutable(program, env, options.sysroot === '' ? MORE_FOLDERS : [])
  if (path === undefined) throw new ProbeFailure('absent', `${program} is not on the PATH`)
  const lines = { stdout: [] as string[], stderr: [] as string[] }
  let size = 0
  const timeout = options.probeTimeout * PROGRAM_SHARE
  const run = runTool(path, args, {
    // The parsers expect messages in English.
    env,
    variables: { LC_ALL: 'C', LANG: 'C' },
    signal,
    timeout,
    onLine: (line, stream) => {
      size += line.length + 1
      if (size > MAX_OUTPUT) throw new ProbeFailure('unreadable', `${program} printed too much`)
      lines[stream].push(line)
    }
  })
  let failure: string | undefined
  try {
    // A program blocked in the kernel by a driver cannot be killed, so do not wait for it.
    await Promise.race([run, timeLimit(timeout, program)])
  } catch (error) {
    if (!(error instanceof ToolError)) throw error
    if (error.exitCode === undefined && error.exitSignal === undefined) throw new ProbeFailure('failed', error.message)
    failure = error.message
  }
  const stdout = lines.stdout.join('\n')
  return { stdout, text: [stdout, ...lines.stderr].join('\n'), ...(failure && { failure }) }
}

async function recordedPlatform(files: SystemFiles, env: NodeJS.ProcessEnv): Promise<string> {
  if ((await files.names('/System')).length > 0) return 'darwin'
  if ((await files.names('/Windows')).length > 0) return 'win32'
  if ((await files.names('/proc')).length > 0) return 'linux'
  return findExecutable('system_profiler', env) === undefined ? process.platform : 'darwin'
}

async function recordedArch(files: SystemFiles, platform: string): Promise<string> {
  const cpuinfo = await files.text('/proc/cpuinfo')
  if (cpuinfo === undefined) return platform === 'darwin' ? 'arm64' : process.arch
  if (/^CPU implementer\s*:/m.test(cpuinfo)) return 'arm64'
  return /^vendor_id\s*:\s*(GenuineIntel|AuthenticAMD)/m.test(cpuinfo) ? 'x64' : process.arch
}

export async function openMachine(options: HardwareOptions): Promise<Machine> {
  const { sysroot: root, env } = options
  const files = systemFiles(root)
  const platform = root === '' ? process.platform : await recordedPlatform(files, env)
  const arch = root === '' ? process.arch : await recordedArch(files, platform)
  return { root, platform, arch, files, run: (program, args) => runProgram(options, program, args) }
}

/** Counters in the kernel's memory. On a busy machine Node's thread pool would take milliseconds to read them. */
const KERNEL_COUNTERS = /^\/(?:proc\/(?:meminfo|self\/cgroup)$|sys\/fs\/cgroup\/)/

function textAtOnce(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}

/** @param root folder with the machine's files, empty for this machine. Links that lead out of it count as missing. */
export function systemFiles(root: string): SystemFiles {
  const base = root === '' ? Promise.resolve('') : realpath(root).catch(() => root)

  async function place(path: string): Promise<string> {
    if (root === '') return path
    const from = await base
    const real = await realpath(join(from, path))
    if (real !== from && !real.startsWith(from.endsWith(sep) ? from : from + sep)) {
      throw new Error(`${path} leads out of ${from}`)
    }
    return real
  }
  // Absent and unreadable files are not errors. Their source is left out.
  const orNothing = <T>(work: Promise<T>) => work.catch(() => undefined)

  return {
    text: async path =>
      root === '' && KERNEL_COUNTERS.test(path)
        ? textAtOnce(path)
        : await orNothing(place(path).then(at => readFile(at, 'utf8'))),
    names: async folder => {
      return inOrder((await orNothing(place(folder).then(at => readdir(at)))) ?? [])
    }
  }
}
