import { messageOf } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { reapStrayEngines } from '../llama-server/launch.ts'
import { createConfiguredRuntimes, runDirectoryOf } from './configured-runtimes.ts'
import { RuntimesOptions } from './options.ts'

export default definePlugin({
  name: 'runtimes',
  api: 1,
  description: 'llama.cpp builds, where they come from, and the engines they run',
  offers: ['runtimes'],
  needs: ['hardware'],
  options: RuntimesOptions,
  setup({ config, log, paths, service }, options) {
    const hardware = service('hardware')
    const runtimes = createConfiguredRuntimes({
      options,
      models: config.models,
      paths,
      env: process.env,
      log,
      hardware
    })
    return {
      services: { runtimes },
      async start() {
        await reapStrayEngines(runDirectoryOf(paths), log)
        // Requests that need it wait for it; the server listens meanwhile.
        runtimes.build().catch(error => {
          log.debug(
            { reason: messageOf(error) },
            'No llama.cpp build yet; the next request that needs one looks again.'
          )
        })
      },
      stop: () => runtimes.stop()
    }
  }
})
