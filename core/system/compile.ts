import { existsSync } from 'node:fs'
import { cp, mkdir, readdir, readFile, rm } from 'node:fs/promises'
import { availableParallelism, freemem } from 'node:os'
import { join } from 'node:path'
import type { Waiting } from '../contracts/progress.ts'
import { CorralError } from '../errors.ts'
import { findExecutable, runTool, type ToolLog } from './child-process.ts'
import managers from './package-managers.json' with { type: 'json' }

/** A source is unavailable for all kinds of builds. The same search does not try it again. */
export class SourceUnavailable extends Error {
  override readonly name = 'SourceUnavailable'
}

/** A source could not make a build. This was costly to find out, so it is remembered. */
export class BuildImpossible extends Error {
  override readonly name = 'BuildImpossible'
}

export function isSourceUnavailable(error: unknown): boolean {
  if (error instanceof CorralError) return error.code === 'hub_unreachable' || error.code === 'hub_rate_limited'
  return error instanceof SourceUnavailable
}

export type BuildTool = 'git' | 'cmake' | 'C++ compiler' | 'make or ninja'

export type ToolChain = Awaited<ReturnType<typeof findToolChain>>

/** Returns the command that installs missing tools, by the text of `/etc/os-release`. Pure. */
export function installCommand(missing: readonly BuildTool[], platform: NodeJS.Platform, osRelease: string) {
  const ids = [...osRelease.matchAll(/^(?:ID|ID_LIKE)=["']?([^"'\n]*)/gm)].flatMap(match => match[1]!.split(' '))
  const manager = managers.find(({ systems }) =>
    systems.some(system => system === platform || (platform === 'linux' && ids.includes(system)))
  )
  if (manager === undefined) return undefined
  const packages = missing.map(tool => manager.packages[tool]).filter(name => name !== '')
  const commands = packages.length > 0 ? [`${manager.install} ${packages.join(' ')}`] : []
  if (platform === 'darwin' && missing.includes('C++ compiler')) commands.unshift('xcode-select --install')
  return commands.join(' && ')
}

/** Finds the tools for compiling a program. @throws SourceUnavailable with missing tools and how to install them */
export async function findToolChain(program: string, env: NodeJS.ProcessEnv) {
  const windows = process.platform === 'win32'
  const find = (...names: string[]) => names.map(name => findExecutable(name, env)).find(path => path !== undefined)
  const cmake = find('cmake')
  const ninja = find('ninja', 'samu')
  const missing: BuildTool[] = []
  if (!find('git')) missing.push('git')
  if (!cmake) missing.push('cmake')
  // Visual Studio's compiler is not on PATH. cmake finds it, or reports that there is none.
  if (!windows && !find(...(env.CXX ? [env.CXX] : ['c++', 'g++', 'clang++']))) missing.push('C++ compiler')
  if (!windows && !ninja && !find('make', 'gmake')) missing.push('make or ninja')
  if (missing.length > 0) {
    const osRelease = await readFile('/etc/os-release', 'utf8').catch(() => '')
    const command = installCommand(missing, process.platform, osRelease)
    const advice = command === undefined ? '' : `; install with: ${command}`
    throw new SourceUnavailable(
      `compiling ${program} needs tools that are not installed: ${missing.join(', ')}${advice}`
    )
  }
  return {
    cmake: cmake!,
    /** Undefined if cmake finds the compiler itself. */
    generator: windows ? undefined : ninja ? 'Ninja' : 'Unix Makefiles',
    // Compilers for GPUs. glslc compiles Vulkan's shaders.
    nvcc: findExecutable('nvcc', env, ['/usr/local/cuda/bin']),
    hipcc: findExecutable('hipcc', env, ['/opt/rocm/bin']),
    glslc: findExecutable('glslc', env)
  }
}

/** Returns the progress of a build, 0 to 1, from a line of make or ninja. Undefined for other lines. Pure. */
export function buildFraction(line: string): number | undefined {
  const percent = /^\[\s*(\d+)%\]/.exec(line)
  if (percent) return Math.min(1, Number(percent[1]) / 100)
  const steps = /^\[(\d+)\/(\d+)\]/.exec(line)
  return steps && Number(steps[2]) > 0 ? Math.min(1, Number(steps[1]) / Number(steps[2])) : undefined
}

const COMPILER_MEMORY = 1024 ** 3

/** Returns how many compilers to run in parallel: one for each core, if memory allows. Pure. */
export function compilerCount(cores: number, freeMemory: number): number {
  return Math.max(1, Math.min(cores, Math.floor(freeMemory / COMPILER_MEMORY)))
}

export interface CompileOptions {
  /** Name and version of the program. */
  subject: string
  tools: ToolChain
  /** Folder for object files. Emptied first. */
  work: string
  target: string
  /** Whether a file that the build left is one of its programs and libraries. */
  isResult(name: string): boolean
  env: NodeJS.ProcessEnv
  log: ToolLog
}

/** Configures and builds a cmake project, then copies its programs and libraries to the target. */
export async function compile(
  project: string,
  settings: (jobs: string) => Record<string, string>,
  targets: readonly string[],
  { subject, tools, work, target, isResult, env, log }: CompileOptions,
  { signal, onProgress }: Waiting
): Promise<void> {
  const jobs = String(compilerCount(availableParallelism(), freemem()))
  // Starts from scratch: a compiler that was killed leaves half an object file.
  await rm(work, { recursive: true, force: true })
  await mkdir(work, { recursive: true })
  const run = (args: string[], onLine?: (line: string) => void) =>
    runTool(tools.cmake, args, { cwd: work, env, purpose: 'compiling', signal, log, onLine })
  onProgress?.({ phase: 'configuring', subject })
  const definitions = Object.entries({ CMAKE_BUILD_TYPE: 'Release', ...settings(jobs) })
  await run([
    ...['-S', project, '-B', work, ...(tools.generator ? ['-G', tools.generator] : [])],
    ...definitions.map(([name, value]) => `-D${name}=${value}`)
  ])
  onProgress?.({ phase: 'building', subject, fraction: 0 })
  let reached = 0
  await run(['--build', work, '--config', 'Release', '-j', jobs, '--target', ...targets], line => {
    const fraction = buildFraction(line) ?? 0
    if (fraction <= reached) return
    reached = fraction
    onProgress?.({ phase: 'building', subject, fraction })
  })
  const bin = [join(work, 'bin', 'Release'), join(work, 'bin')].find(path => existsSync(path))
  if (bin === undefined) throw new Error(`the build of ${subject} left no programs in ${work}`)
  await copyBinaries(bin, target, isResult)
}

export async function copyBinaries(from: string, target: string, isResult: CompileOptions['isResult']): Promise<void> {
  await mkdir(target, { recursive: true })
  for (const name of await readdir(from)) {
    // Libraries have names with and without their version. One is a link to the other.
    if (isResult(name)) await cp(join(from, name), join(target, name), { verbatimSymlinks: true })
  }
}
