import { join } from 'node:path'
import type { BuildSource } from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { DataPaths } from '../../core/system/data-paths.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createLlamaServerEngine } from '../llama-server/engine.ts'
import type { ModelRuntimes } from './installation.ts'
import { builtInKinds, respectingEnvironment } from './kinds/index.ts'
import type { RuntimesOptions } from './options.ts'
import { createProof } from './prove.ts'
import { createRuntimes, type RuntimesService } from './runtimes-service.ts'
import type { SearchLog } from './search-report.ts'
import { compiledSource } from './sources/compiled.ts'
import { createFindConverter } from './sources/converter.ts'
import { Releases, releaseSource } from './sources/release.ts'
import { systemSource } from './sources/system.ts'

export interface CreateDeps {
  options: RuntimesOptions
  /** What the sections of models in config.yaml say. */
  models?: ModelRuntimes
  paths: Pick<DataPaths, 'home' | 'runtimes'>
  env: NodeJS.ProcessEnv
  log: SearchLog
  hardware: HardwareService
}

/** Where running engines of a data directory are written down. */
export function runDirectoryOf(paths: Pick<DataPaths, 'home'>): string {
  return join(paths.home, 'run')
}

/** The `runtimes` service with the sources that the options name. */
export function createConfiguredRuntimes({ options, models, paths, env, log, hardware }: CreateDeps): RuntimesService {
  const directory = paths.runtimes
  const engineSettings = {
    extraArguments: options.engine_arguments,
    loadTimeout: parseDuration(options.load_timeout)!,
    hangTimeout: parseDuration(options.hang_timeout)!,
    runDirectory: runDirectoryOf(paths)
  }
  const prove = createProof(
    (build, spec, waiting, environment) =>
      createLlamaServerEngine(build, spec, { ...engineSettings, log, environment }, waiting),
    log
  )
  const release = {
    apiUrl: options.release.api_url,
    downloadUrl: options.release.download_url,
    repository: options.release.repository,
    connectTimeout: parseDuration(options.release.connect_timeout)!,
    tag: options.release.tag
  }
  const releases = new Releases({ ...release, directory, log })
  const namedBy = env.CORRAL_LLAMA_CPP ? 'CORRAL_LLAMA_CPP' : 'runtimes.llama_cpp'
  const sources: Record<RuntimesOptions['sources'][number], () => BuildSource> = {
    system: () => systemSource({ path: options.llama_cpp, namedBy, env }),
    release: () => releaseSource(releases, release),
    source: () =>
      compiledSource({
        name: options.source.package,
        version: options.source.version,
        prebuilt: options.source.prebuilt_libraries,
        directory,
        env,
        log,
        trial: (candidate, { signal, hardware, runtime }) => prove(candidate, { own: true, signal, hardware, runtime })
      })
  }
  // A folder that the user names counts even when the list leaves `system` out.
  const names = options.sources.filter(name => name !== 'system' || options.llama_cpp === '')
  if (options.llama_cpp !== '') names.unshift('system')
  const findConverter = createFindConverter({
    directory,
    server: releases.server,
    source: { name: options.source.package, version: options.source.version, env, log }
  })
  return createRuntimes({
    // Last: what was installed by hand serves by itself only where nothing else is at hand.
    sources: names.map(name => sources[name]()),
    kinds: builtInKinds.map(kind => respectingEnvironment(kind, env)),
    hardware,
    releases,
    ...(options.llama_cpp !== '' && { named: { folder: options.llama_cpp, by: namedBy } }),
    ...(models && { models }),
    directory,
    log,
    engineSettings,
    prove,
    findConverter
  })
}
