import { join } from 'node:path'
import type { LoadedConfig } from '../core/config/load.ts'
import type { Runtimes } from '../core/contracts/builds.ts'
import type { ServiceName } from '../core/contracts/services.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { CommandContext } from './context.ts'
import { interruption } from './interruption.ts'

/** A plugin that offers a service, those that it needs, and those that they need, in the list's order. */
function pluginsFor(service: ServiceName, definitions: readonly PluginDefinition[]): PluginDefinition[] {
  const wanted = new Set<string>([service])
  for (let size = 0; size !== wanted.size; ) {
    size = wanted.size
    for (const { offers = [], needs = [] } of definitions) {
      if (offers.some(offer => wanted.has(offer))) for (const need of needs) wanted.add(need)
    }
  }
  return definitions.filter(({ offers = [] }) => offers.some(offer => wanted.has(offer)))
}

/**
 * Lets `use` work with the `runtimes` service in this process, without a server and without claiming the data directory:
 * the builds in it may be shared, and one server may run on it meanwhile.
 */
export async function withOwnRuntimes<Result>(
  context: CommandContext,
  config: LoadedConfig,
  use: (runtimes: Runtimes) => Promise<Result>
): Promise<Result> {
  const [{ createApplication }, { createPluginHost }, { createLogger }, definitions] = await Promise.all([
    import('../core/http/application.ts'),
    import('../core/plugins/plugin-host.ts'),
    import('../core/system/log.ts'),
    context.definitions()
  ])
  let log: ReturnType<typeof createLogger>
  try {
    log = createLogger(config.core.log_level, join(config.paths.logs, 'corral.log'))
  } catch {
    // What cannot be written down is looked at all the same.
    log = (await import('pino')).pino({ level: 'silent' })
  }
  const app = await createApplication(config.core, log)
  const host = createPluginHost({
    definitions: pluginsFor('runtimes', definitions),
    config,
    log,
    signal: interruption()
  })
  try {
    await host.register(app)
    await app.ready()
    // Nothing is started: that would look for a build, and end the engines of a server that has gone.
    return await use(host.service('runtimes'))
  } finally {
    await host.stop()
    await app.close()
  }
}
