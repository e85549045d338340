import { existsSync, readdirSync } from 'node:fs'
import { cp, mkdir, readdir, readFile, rm, symlink } from 'node:fs/promises'
import { availableParallelism, freemem } from 'node:os'
import { basename, delimiter, dirname, join } from 'node:path'
import type { BuildKind } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { isSystemError } from '../../../core/errors.ts'
import { runTool, type ToolLog } from '../../../core/system/child-process.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { isProgramOrLibrary, PROGRAMS, prebuiltLibraries } from '../builds-directory.ts'
import { buildFraction, type ToolChain } from './build-tools.ts'
import type { LlamaSource } from './llama-source.ts'

export interface CompileOptions {
  source: LlamaSource
  tools: ToolChain
  /** Folder for object files; made anew. */
  work: string
  /** Folder that gets the programs and libraries. */
  target: string
  env: NodeJS.ProcessEnv
  log: ToolLog
}

/** Bytes that one compiler may need. */
const COMPILER_MEMORY = 1024 ** 3

/** How many compilers run at once: one for each core, as far as memory goes. Pure. */
export function compilerCount(cores: number, freeMemory: number): number {
  return Math.max(1, Math.min(cores, Math.floor(freeMemory / COMPILER_MEMORY)))
}

/** Configures and builds a cmake project, then copies its programs and libraries to the target. */
async function build(
  project: string,
  settings: Record<string, string>,
  targets: string[],
  options: CompileOptions,
  { signal, onProgress }: Waiting
): Promise<void> {
  const { tools, work, target, env, log, source } = options
  const subject = `llama.cpp ${source.release}`
  const jobs = String(compilerCount(availableParallelism(), freemem()))
  // Never on top of an earlier attempt: a compiler that was killed leaves half an object file.
  await rm(work, { recursive: true, force: true })
  await mkdir(work, { recursive: true })
  onProgress?.({ phase: 'configuring', subject })
  const definitions = Object.entries({ CMAKE_BUILD_TYPE: 'Release', ...settings }).map(([name, value]) => {
    return `-D${name}=${value.replace('{jobs}', jobs)}`
  })
  const generator = tools.generator ? ['-G', tools.generator] : []
  await runTool(tools.cmake, ['-S', project, '-B', work, ...generator, ...definitions], { cwd: work, env, signal, log })
  onProgress?.({ phase: 'building', subject, fraction: 0 })
  let reached = 0
  await runTool(tools.cmake, ['--build', work, '--config', 'Release', '-j', jobs, '--target', ...targets], {
    cwd: work,
    env,
    signal,
    log,
    onLine(line) {
      const fraction = buildFraction(line) ?? 0
      if (fraction <= reached) return
      reached = fraction
      onProgress?.({ phase: 'building', subject, fraction })
    }
  })
  const bin = [join(work, 'bin', 'Release'), join(work, 'bin')].find(path => existsSync(path))
  if (bin === undefined) throw new Error(`the build of llama.cpp left no programs in ${work}`)
  await copyBinaries(bin, target)
}

async function copyBinaries(from: string, target: string): Promise<void> {
  await mkdir(target, { recursive: true })
  for (const name of await readdir(from)) {
    // Libraries have names with and without their version, one a link to the other.
    if (isProgramOrLibrary(name)) await cp(join(from, name), join(target, name), { verbatimSymlinks: true })
  }
}

const ORIGIN_RPATH = process.platform === 'darwin' ? '@loader_path' : '$ORIGIN'

/** Kinds of builds that can be compiled. */
export type CompiledKind = 'cpu' | 'cuda' | 'rocm' | 'metal' | 'vulkan'

/** Compiles all of llama.cpp for this machine. */
export async function compileAll(
  kind: CompiledKind,
  hardware: Hardware,
  options: CompileOptions,
  waiting: Waiting
): Promise<void> {
  const { tools, source } = options
  const settings: Record<string, string> = {
    BUILD_SHARED_LIBS: 'ON',
    CMAKE_BUILD_WITH_INSTALL_RPATH: 'ON',
    CMAKE_INSTALL_RPATH: ORIGIN_RPATH,
    GGML_NATIVE: 'ON',
    GGML_RPC: 'ON',
    LLAMA_BUILD_TESTS: 'OFF',
    LLAMA_BUILD_EXAMPLES: 'OFF',
    LLAMA_BUILD_APP: 'OFF',
    LLAMA_BUILD_UI: 'OFF',
    LLAMA_USE_PREBUILT_UI: 'OFF',
    // Engines are reached through a Unix socket or the loopback only, and fetch nothing.
    LLAMA_OPENSSL: 'OFF'
  }
  if (kind === 'cuda') Object.assign(settings, { GGML_CUDA: 'ON', CMAKE_CUDA_COMPILER: tools.nvcc! })
  if (kind === 'rocm') {
    settings.GGML_HIP = 'ON'
    // For all that there are it takes hours.
    const targets = hardware.gpus.flatMap(({ architecture }) => (architecture?.startsWith('gfx') ? [architecture] : []))
    if (targets.length > 0) settings.GPU_TARGETS = [...new Set(targets)].join(';')
  }
  if (kind === 'vulkan') settings.GGML_VULKAN = 'ON'
  await build(source.directory, settings, Object.values(PROGRAMS), options, waiting)
}

/**
 * Compiles only the programs, against the libraries of the platform package of the same release.
 * @param packageFolder the unpacked platform package
 * @param replacements folder of libraries that take the place of those of the package
 */
export async function compileAgainstPrebuilt(
  packageFolder: string,
  replacements: string | undefined,
  options: CompileOptions,
  waiting: Waiting
): Promise<void> {
  const bins = join(packageFolder, 'bins')
  const [inner] = await readdir(bins)
  if (inner === undefined) throw new Error(`${packageFolder} holds no libraries`)
  const folder = join(bins, inner)
  const metadata = JSON.parse(await readFile(join(folder, '_nlcBuildMetadata.json'), 'utf8'))
  const release = metadata?.buildOptions?.llamaCpp?.release
  if (release !== options.source.release) {
    throw new Error(`its libraries are of llama.cpp ${release}, the source is ${options.source.release}`)
  }
  const names = await readdir(folder)
  const libraries = prebuiltLibraries(names)
  if (!libraries) throw new Error(`not all libraries of llama.cpp are in ${folder}`)
  const settings = { LLAMA_SOURCE_DIR: options.source.directory, PREBUILT_DIR: folder, JOBS: '{jobs}', ...libraries }
  const project = join(packageRoot, 'runtimes', 'llama-cpp', 'prebuilt-server')
  await build(project, settings, ['all'], options, waiting)
  await copyBinaries(folder, options.target)
  if (replacements !== undefined) await copyBinaries(replacements, options.target)
}

/** The npm package with prebuilt libraries of a kind; undefined when there is none that can be linked to. Pure. */
export function prebuiltPackage(
  kind: BuildKind,
  platform: string,
  arch: string,
  glibc: string | undefined
): string | undefined {
  if (platform === 'darwin') {
    if (arch === 'arm64') return kind === 'metal' ? '@node-llama-cpp/mac-arm64-metal' : undefined
    return arch === 'x64' && kind === 'cpu' ? '@node-llama-cpp/mac-x64' : undefined
  }
  // The libraries are linked to glibc; Windows' ones come without what a linker needs.
  if (platform !== 'linux' || glibc === undefined) return undefined
  if (kind === 'cpu') return arch === 'x64' || arch === 'arm64' ? `@node-llama-cpp/linux-${arch}` : undefined
  return arch === 'x64' && (kind === 'vulkan' || kind === 'cuda') ? `@node-llama-cpp/linux-x64-${kind}` : undefined
}

/** What a CUDA build of llama.cpp loads beside the driver's own libcuda.so.1. */
const LIBRARIES = ['libcudart.so', 'libcublas.so', 'libcublasLt.so']

/** Folders that toolkits and packages put CUDA's libraries in, on Linux. */
function libraryFolders(env: NodeJS.ProcessEnv, nvcc: string | undefined): string[] {
  const toolkits = [env.CUDA_PATH, env.CUDA_HOME, nvcc && join(dirname(nvcc), '..'), '/usr/local/cuda', '/opt/cuda']
  const versions = namesIn('/usr/local').filter(name => name.startsWith('cuda-'))
  return [
    ...(env.LD_LIBRARY_PATH ?? '').split(delimiter),
    ...[...toolkits, ...versions.map(name => join('/usr/local', name))].flatMap(toolkit =>
      toolkit ? [join(toolkit, 'lib64'), join(toolkit, 'lib'), join(toolkit, 'targets', 'x86_64-linux', 'lib')] : []
    ),
    '/usr/lib/x86_64-linux-gnu',
    '/usr/lib64'
  ].filter(folder => folder !== '')
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch (error) {
    if (isSystemError(error, 'ENOENT') || isSystemError(error, 'EACCES')) return []
    throw error
  }
}

/** The libraries of one major version of CUDA on this machine, as absolute paths; else the names of the missing ones. */
export function findCudaLibraries(
  major: number,
  env: NodeJS.ProcessEnv,
  nvcc: string | undefined
): { paths: string[] } | { missing: string[] } {
  const folders = libraryFolders(env, nvcc)
  const found = LIBRARIES.map(library => {
    const name = `${library}.${major}`
    return { name, path: folders.map(folder => join(folder, name)).find(path => existsSync(path)) }
  })
  const missing = found.filter(({ path }) => path === undefined).map(({ name }) => name)
  return missing.length > 0 ? { missing } : { paths: found.map(({ path }) => path!) }
}

/** Puts links to libraries into a build's folder, where its own libraries look first: no LD_LIBRARY_PATH is needed. */
export async function linkLibraries(paths: readonly string[], folder: string): Promise<void> {
  for (const path of paths) await symlink(path, join(folder, basename(path)))
}
