import { join } from 'node:path'
import type { Logger } from 'pino'
import type { LoadedConfig } from '../core/config/load.ts'
import type { ServiceName, Services } from '../core/contracts/services.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { PluginHost } from '../core/plugins/plugin-host.ts'
import { interruption } from './command-failure.ts'
import type { CommandContext } from './context.ts'

/**
 * Uses a service in this process, without a server. Its plugin and those it needs are set up but not started, because
 * starting would search for a build and stop engines left by a dead server.
 */
export async function withLocalService<Name extends ServiceName, Result>(
  context: CommandContext,
  config: LoadedConfig,
  name: Name,
  work: (service: Services[Name]) => Promise<Result>
): Promise<Result> {
  const [{ createLogger }, { pino }, all] = await Promise.all([
    import('../core/system/log.ts'),
    import('pino'),
    context.definitions()
  ])
  let log: Logger
  try {
    log = createLogger(config.core.log_level, { file: join(config.paths.logs, 'corral.log') })
  } catch {
    // The log is optional.
    log = pino({ level: 'silent' })
  }
  return await withPlugins(config, pluginsFor(name, all), log, host => work(host.service(name)))
}

/** Sets up and registers plugins, without starting them, while `work` runs. @throws errors of their setup */
export async function withPlugins<Result>(
  config: LoadedConfig,
  definitions: readonly PluginDefinition[],
  log: Logger,
  work: (host: PluginHost) => Promise<Result>
): Promise<Result> {
  const [{ createApplication }, { PluginHost }, { LogLevels }] = await Promise.all([
    import('../core/http/application.ts'),
    import('../core/plugins/plugin-host.ts'),
    import('../core/system/log-levels.ts')
  ])
  const logs = new LogLevels(log, config.core.log_levels)
  const app = await createApplication(config.core, logs.part('http'))
  const host = new PluginHost({ definitions, config, logs, signal: interruption() })
  try {
    await host.register(app)
    await app.ready()
    return await work(host)
  } finally {
    await host.stop()
    await app.close()
  }
}

/** The plugin that offers a service, and its direct and indirect dependencies, in the order of the list. */
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
