import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { LoadedConfig } from '../core/config/load.ts'
import { messageOf } from '../core/errors.ts'
import type { RunningServer } from '../core/http/server.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { type CommandContext, openConfig } from './context.ts'
import { CommandFailure, EXIT } from './failure.ts'
import { interruption } from './interruption.ts'
import { planAddresses, recordedAddress } from './server-address.ts'
import { answersAt, createClient, type ServerClient } from './server-client.ts'

export interface ServerConnection {
  client: ServerClient
  config: LoadedConfig
  /** The server, where this process had to start it. */
  own: RunningServer | undefined
}

/**
 * What to do when no server runs: `fail`; start one `aside` in this process, on a free port of loopback, for the moment
 * of the command; or start one as `usual`, on the configured address, for as long as the command runs.
 */
export type WhenNone = 'fail' | 'aside' | 'usual'

/** How long a health check may take: a server under load answers late. */
const HEALTH_PATIENCE = 5000
/** How long a server that holds the data directory may take until it answers (it may be starting). */
const START_PATIENCE = 15_000

/** Finds a server (or starts one), lets `use` work with it, and ends it if it was started here. */
export async function withServer<Result>(
  context: CommandContext,
  whenNone: WhenNone,
  use: (connection: ServerConnection) => Promise<Result>,
  options: { config?: LoadedConfig; onStart?: (address: string) => void } = {}
): Promise<Result> {
  const signal = interruption()
  const config = options.config ?? (await openConfig(context))
  const connect = (address: string): ServerClient => createClient({ address, apiKey: apiKeyOf(config), signal })
  const deadline = Date.now() + START_PATIENCE
  for (;;) {
    signal.throwIfAborted()
    const address = await findServer(config, deadline)
    if (address) return await use({ client: connect(address), config, own: undefined })
    if (whenNone === 'fail') throw noServer(config)
    let own: RunningServer
    try {
      own = await startOwn(context, config, whenNone)
    } catch (error) {
      // Another process was quicker: its server is the one to use.
      if (!isHeld(error) || Date.now() > deadline) throw error
      await sleep(100)
      continue
    }
    try {
      options.onStart?.(own.address)
      return await use({ client: connect(recordedAddress(own.address)!), config, own })
    } finally {
      await own.close()
    }
  }
}

/** The address of the server to use; undefined when none runs and one may be started here. */
async function findServer(config: LoadedConfig, deadline: number): Promise<string | undefined> {
  const plan = planAddresses(config)
  if (plan.given && (await answersAt(plan.given, HEALTH_PATIENCE))) return plan.given
  if (!plan.local) throw noServer(config)
  const { readOwner } = await import('../core/system/data-directory.ts')
  for (;;) {
    const owner = await readOwner(config.paths)
    if (!owner) break
    const address = recordedAddress(owner.address)
    if (address && (await answersAt(address, HEALTH_PATIENCE))) {
      if (!plan.given || !plan.byFlag || plan.given === address) return address
      throw new CommandFailure(
        EXIT.noServer,
        `No server answers at ${plan.given}; the one of ${config.paths.home} is at ${address}.`
      )
    }
    if (Date.now() > deadline) {
      throw new CommandFailure(
        EXIT.noServer,
        `Process ${owner.pid} on ${owner.host} holds ${config.paths.home}, but no server answers at ${owner.address}. ` +
          'Wait until it has started, or end it and try again.'
      )
    }
    await sleep(100)
  }
  return plan.usual && (await answersAt(plan.usual, HEALTH_PATIENCE)) ? plan.usual : undefined
}

async function startOwn(context: CommandContext, config: LoadedConfig, whenNone: WhenNone): Promise<RunningServer> {
  const [{ startServer }, { createLogger }, definitions] = await Promise.all([
    import('../core/http/server.ts'),
    import('../core/system/log.ts'),
    context.definitions()
  ])
  const file = join(config.paths.logs, 'corral.log')
  let log: ReturnType<typeof createLogger>
  try {
    log = createLogger(config.core.log_level, file)
  } catch (error) {
    throw new CommandFailure(
      EXIT.failure,
      `The log file ${file} cannot be written: ${messageOf(error)}. Make its folder writable, or choose another data directory with CORRAL_HOME.`,
      error
    )
  }
  return await startServer({
    config: whenNone === 'aside' ? asideConfig(config) : config,
    definitions: whenNone === 'usual' ? definitions : withoutEngineSearch(definitions),
    log
  })
}

/** A server for one command: nobody else is to find it. */
function asideConfig(config: LoadedConfig): LoadedConfig {
  return {
    ...config,
    core: { ...config.core, host: '127.0.0.1', port: 0 },
    sections: { ...config.sections, 'api-ollama': { ...config.sections['api-ollama'], listen: '' } }
  }
}

/** A command that only looks at models should not set off a build of llama.cpp that its end would cut off. */
function withoutEngineSearch(definitions: PluginDefinition[]): PluginDefinition[] {
  return definitions.map(definition =>
    definition.offers?.includes('runtimes')
      ? {
          ...definition,
          setup: async (...given) => ({ ...(await definition.setup(...given)), start: undefined })
        }
      : definition
  )
}

function apiKeyOf(config: LoadedConfig): string | undefined {
  const keys = config.sections.security?.api_keys
  return Array.isArray(keys) && typeof keys[0] === 'string' ? keys[0] : undefined
}

function isHeld(error: unknown): boolean {
  return error instanceof Error && error.name === 'DataDirectoryError' && 'reason' in error && error.reason === 'held'
}

function noServer(config: LoadedConfig): CommandFailure {
  const { given, local, usual } = planAddresses(config)
  const where = given ?? usual
  const place = where ? ` at ${where}` : ''
  return new CommandFailure(
    EXIT.noServer,
    local
      ? `No server runs${place}${place ? ' or' : ''} on ${config.paths.home}. Start one with: corral serve`
      : `No server answers${place}. Start one there, or check --host and --port.`
  )
}
