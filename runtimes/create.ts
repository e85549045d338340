import { join } from 'node:path'
import type { DataPaths } from '../core/data-paths.ts'
import { parseDuration } from '../core/duration.ts'
import type { BuildSource } from '../core/runtimes.ts'
import type { SearchLog } from './build-search.ts'
import { createFindConverter } from './find-converter.ts'
import { createLlamaServerEngine } from './llama-server/engine.ts'
import type { RuntimesOptions } from './options.ts'
import { createProof, type StartEngine } from './prove-by-answer.ts'
import { createRuntimes, type RuntimesService } from './runtimes-service.ts'
import { releaseSource } from './sources/release.ts'
import { compiledSource } from './sources/source.ts'
import { systemSource } from './sources/system.ts'

export interface CreateDeps {
  options: RuntimesOptions
  paths: Pick<DataPaths, 'home' | 'runtimes'>
  env: NodeJS.ProcessEnv
  log: SearchLog
}

/** Where running engines of a data directory are written down. */
export function runDirectoryOf(paths: Pick<DataPaths, 'home'>): string {
  return join(paths.home, 'run')
}

/** Version of glibc; undefined on systems with another C library. */
function glibcVersion(): string | undefined {
  if (process.platform !== 'linux') return undefined
  // Names of hosts are looked up otherwise, which can take seconds.
  const report = Object.assign(process.report, { excludeNetwork: true }).getReport()
  return (report as { header?: { glibcVersionRuntime?: string } }).header?.glibcVersionRuntime
}

/** The `runtimes` service with the sources that the options name. */
export function createConfiguredRuntimes({ options, paths, env, log }: CreateDeps): RuntimesService {
  const directory = paths.runtimes
  const startEngine: StartEngine = (build, spec, waiting) =>
    createLlamaServerEngine(
      build,
      spec,
      {
        log,
        runDirectory: runDirectoryOf(paths),
        loadTimeout: parseDuration(options.load_timeout)!,
        extraArguments: options.engine_arguments
      },
      waiting
    )
  const prove = createProof(startEngine, log)
  const { platform, arch } = process
  const releaseServer = {
    apiUrl: options.release.api_url,
    downloadUrl: options.release.download_url,
    repository: options.release.repository,
    connectTimeout: parseDuration(options.release.connect_timeout)!
  }
  const sources: Record<RuntimesOptions['sources'][number], () => BuildSource> = {
    system: () =>
      systemSource({
        path: options.llama_cpp,
        namedBy: env.CORRAL_LLAMA_CPP ? 'CORRAL_LLAMA_CPP' : 'runtimes.llama_cpp',
        env
      }),
    release: () =>
      releaseSource({
        ...releaseServer,
        tag: options.release.tag,
        directory,
        platform: { platform, arch }
      }),
    source: () =>
      compiledSource({
        name: options.source.package,
        version: options.source.version,
        prebuilt: options.source.prebuilt_libraries,
        directory,
        env,
        log,
        platform,
        arch,
        glibc: glibcVersion(),
        trial: (candidate, signal) => prove(candidate, true, signal)
      })
  }
  // A folder that the user names counts even when the list leaves `system` out.
  const names = options.sources.filter(name => name !== 'system' || options.llama_cpp === '')
  if (options.llama_cpp !== '') names.unshift('system')
  const findConverter = createFindConverter({
    directory,
    release: releaseServer,
    source: { name: options.source.package, version: options.source.version, env, log }
  })
  return createRuntimes({
    sources: names.map(name => sources[name]()),
    directory,
    log,
    startEngine,
    prove,
    findConverter
  })
}
