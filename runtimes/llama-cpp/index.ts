import { join } from 'node:path'
import { Type } from 'typebox'
import type { BuildSource } from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import { errorMessage } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import type { DataPaths } from '../../core/system/data-paths.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createLlamaServerEngine } from '../llama-server/engine.ts'
import { reapStrayEngines } from '../llama-server/launch.ts'
import type { BuildsLog } from './builds-directory.ts'
import type { ModelRuntimes } from './installation.ts'
import { builtInKinds, respectingEnvironment } from './kinds/index.ts'
import { RuntimesOptions } from './options.ts'
import { createRuntimes } from './runtimes-service.ts'
import { compiledSource } from './sources/compiled.ts'
import { createFindConverter } from './sources/llama-source.ts'
import { Releases, releaseSource } from './sources/release.ts'
import { systemSource } from './sources/system.ts'
import { createBuildVerifier } from './verify-build.ts'
import { createWorkerHost } from './worker/worker-host.ts'

/** Creates the `runtimes` service with the sources that the options name. */
export function createConfiguredRuntimes(deps: {
  options: RuntimesOptions
  models?: () => ModelRuntimes
  paths: Pick<DataPaths, 'home' | 'runtimes'>
  env: NodeJS.ProcessEnv
  log: BuildsLog
  hardware: HardwareService
}): ReturnType<typeof createRuntimes> {
  const { options, paths, env, log } = deps
  const directory = paths.runtimes
  const engineSettings = {
    extraArguments: options.engine_arguments,
    loadTimeout: parseDuration(options.load_timeout)!,
    hangTimeout: parseDuration(options.hang_timeout)!,
    runDirectory: join(paths.home, 'run')
  }
  const verifyBuild = createBuildVerifier(
    (build, spec, waiting, environment) =>
      createLlamaServerEngine(build, spec, { ...engineSettings, log, environment }, waiting),
    log
  )
  const releases = new Releases({ ...options.release, directory, log })
  const source = { name: options.source.package, version: options.source.version, env, log }
  const namedBy = env.CORRAL_LLAMA_CPP ? 'CORRAL_LLAMA_CPP' : 'runtimes.llama_cpp'
  const sources: Record<RuntimesOptions['sources'][number], () => BuildSource> = {
    system: () => systemSource({ path: options.llama_cpp, namedBy, env }),
    release: () => releaseSource(releases, options.release),
    source: () =>
      compiledSource({
        ...source,
        prebuilt: options.source.prebuilt_libraries,
        directory,
        trial: (candidate, { signal, hardware, runtime }) =>
          verifyBuild(candidate, { own: true, signal, hardware, runtime })
      })
  }
  // A folder that the user names is used even if the list leaves `system` out.
  const names = options.sources.filter(name => name !== 'system' || options.llama_cpp === '')
  if (options.llama_cpp !== '') names.unshift('system')
  return createRuntimes({
    sources: names.map(name => sources[name]()),
    kinds: builtInKinds.map(kind => respectingEnvironment(kind, env)),
    hardware: deps.hardware,
    releases,
    named: options.llama_cpp === '' ? undefined : { folder: options.llama_cpp, by: namedBy },
    models: deps.models,
    directory,
    log,
    engineSettings,
    verifyBuild,
    findConverter: createFindConverter({ directory, server: releases.server, source })
  })
}

export default definePlugin({
  name: 'runtimes',
  api: 1,
  description: 'llama.cpp builds, where they come from, and the engines they run',
  offers: ['runtimes', 'workerHost'],
  needs: ['hardware'],
  options: Type.Object(RuntimesOptions.properties, { restart: true }),
  setup({ config, log, paths, service }, options) {
    const hardware = service('hardware')
    const models = () => config.models
    const runtimes = createConfiguredRuntimes({ options, models, paths, env: process.env, log, hardware })
    return {
      services: { runtimes, workerHost: createWorkerHost({ runtimes, hardware, cache: paths.cache, log }) },
      async start() {
        await reapStrayEngines(runtimes.engineSettings.runDirectory, log)
      },
      // Requests that need the build wait for it. The search keeps a processor busy for a while, so the server listens
      // first.
      hooks: async app => {
        app.addHook('onListen', async () => {
          runtimes.build().catch(error => {
            const text = 'No llama.cpp build yet; the next request for one searches again.'
            log.debug({ reason: errorMessage(error) }, text)
          })
        })
      },
      stop: () => runtimes.stop()
    }
  }
})
