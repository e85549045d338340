import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { findFile, findHome } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { RunningServer } from '../core/http/server.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { Owner } from '../core/system/data-directory.ts'
import { dataPaths } from '../core/system/data-paths.ts'
import { CommandFailure, EXIT, interruption } from './command-failure.ts'
import { type CommandContext, openConfig, placesOf } from './context.ts'
import {
  namesServer,
  placeOf,
  planAddresses,
  readServerSettings,
  recordedAddress,
  type ServerSettings,
  serverSettingsOf
} from './server-address.ts'
import { createClient, healthAt, type ServerAccess, type ServerClient, type ServerPlace } from './server-client.ts'

export interface ServerConnection {
  client: ServerClient
  /** The server, where this process had to start it, up to now. */
  readonly own: RunningServer | undefined
}

/**
 * What to do when no server runs: `fail`; start one `aside` in this process, on a free port of loopback, just for this
 * command; or start one as `usual`, on the configured address, for as long as the command runs.
 */
export type WhenNone = 'fail' | 'aside' | 'usual'

/** What follows from there being no server, as a clause, and what to do beside starting one. */
type Without = string | { so: string; or: (home: string) => string }

/** Time limit of a health check in milliseconds: a server under load answers late. */
const HEALTH_TIMEOUT = 10_000
/** How long a server that holds the data directory may take until it answers (it may be starting; milliseconds). */
const START_TIMEOUT = 30_000

/**
 * Finds a server (or starts one), lets `use` work with it, and stops it if it was started here. With `aside`, a request
 * that the server has not taken, since it shuts down, goes to another one.
 * @throws CommandFailure with `EXIT.noServer` when none can be reached
 */
export async function withServer<Result>(
  context: CommandContext,
  whenNone: WhenNone,
  use: (connection: ServerConnection) => Promise<Result>,
  without?: Without
): Promise<Result> {
  const signal = interruption()
  let own: RunningServer | undefined
  let config: LoadedConfig | undefined
  // A server of our own needs the whole configuration, a request to one that runs does not.
  const loadWhole = async () => (config ??= await openConfig(context))

  async function findOrStart(): Promise<ServerAccess> {
    const settings = (await readServerSettings(placesOf(context))) ?? serverSettingsOf(await loadWhole())
    const { apiKey } = settings
    const deadline = performance.now() + START_TIMEOUT
    for (;;) {
      signal.throwIfAborted()
      const place = await findServer(settings, deadline)
      if (place) return { ...place, apiKey }
      if (whenNone === 'fail') throw noServer(settings, without)
      try {
        own = await startOwn(context, await loadWhole(), whenNone)
        return { address: recordedAddress(own.address)!, socket: own.socket, apiKey }
      } catch (error) {
        // Another process was quicker: its server is the one to use.
        if (!isHeld(error) || performance.now() > deadline) throw error
        await sleep(100)
      }
    }
  }

  // A server that another command has started for itself ends with that one, perhaps before it has taken our request.
  const elsewhere = async () => (whenNone === 'aside' && !own ? await findOrStart() : undefined)
  try {
    // Most commands end here: the server of the data directory is found without a look at the configuration.
    const near = await serverOfDataDirectory(context)
    const access = near ? { ...near, apiKey: undefined } : await findOrStart()
    return await use({
      client: createClient({ ...access, signal, elsewhere }),
      get own() {
        return own
      }
    })
  } finally {
    await own?.close()
  }
}

/** Sends one request to a server that `withServer` finds or starts, and returns its reply. */
export async function ask<Reply>(
  context: CommandContext,
  method: 'GET' | 'POST' | 'DELETE',
  path: string,
  body?: object,
  { whenNone = 'aside', without }: { whenNone?: WhenNone; without?: Without } = {}
): Promise<Reply> {
  return await withServer(context, whenNone, ({ client }) => client.json<Reply>(method, path, body), without)
}

/**
 * The private socket of the server that holds the data directory, where nothing names another address and it answers
 * there. The same place that `findServer` would find, without the time that reading YAML takes.
 * @throws ConfigError when a configuration file is named and cannot be read
 */
async function serverOfDataDirectory(context: CommandContext): Promise<ServerPlace | undefined> {
  const places = placesOf(context)
  if (namesServer(places)) return undefined
  const paths = dataPaths(findHome(places).home, undefined)
  await findFile(places, paths.home)
  const { readOwner } = await import('../core/system/data-directory.ts')
  const owner = await readOwner(paths)
  const address = owner && recordedAddress(owner.address)
  if (address === undefined) return undefined
  const place = placeOf(address, paths.home, owner)
  const way = place.socket === undefined ? undefined : await answering(place, paths.home, owner)
  // By its address it may want a key of the configuration.
  return way?.socket === undefined ? undefined : way
}

/** Where the server to use is; undefined when none runs and one may be started here. */
async function findServer(settings: ServerSettings, deadline: number): Promise<ServerPlace | undefined> {
  const { paths } = settings
  const plan = planAddresses(settings)
  const { readOwner } = await import('../core/system/data-directory.ts')
  if (plan.named) {
    // A data directory that cannot be read has nothing to do with a server that was named.
    const owner = plan.local ? await readOwner(paths).catch(() => undefined) : undefined
    const place = await answering(placeOf(plan.named, paths.home, owner), paths.home, owner)
    if (place) return place
  }
  if (!plan.local) throw noServer(settings)
  for (;;) {
    const owner = await readOwner(paths)
    if (!owner) break
    const address = recordedAddress(owner.address)
    const place = address && (await answering(placeOf(address, paths.home, owner), paths.home, owner))
    if (place) {
      if (!plan.named || !plan.byFlag || plan.named === address) return place
      throw new CommandFailure(
        EXIT.noServer,
        `No server answers at ${plan.named}; the one of ${paths.home} is at ${address}.`
      )
    }
    if (performance.now() > deadline) {
      throw new CommandFailure(
        EXIT.noServer,
        `Process ${owner.pid} on ${owner.host} holds ${paths.home}, but no server answers at ${owner.address}. ` +
          'Wait until it has started, or stop it and try again.'
      )
    }
    await sleep(100)
  }
  return plan.usual ? await answering(placeOf(plan.usual, paths.home, undefined), paths.home) : undefined
}

/**
 * The place where a server answers, by its socket if that can be opened; undefined where none does.
 * @param owner the server that holds the data directory
 * @throws CommandFailure where that is the server meant, and it is silent
 */
async function answering(place: ServerPlace, home: string, owner?: Owner): Promise<ServerPlace | undefined> {
  const byAddress = { address: place.address, why: `${place.socket} cannot be opened by this user` }
  for (const way of place.socket === undefined ? [place] : [place, byAddress]) {
    const health = await healthAt(way, HEALTH_TIMEOUT)
    if (health === 'ok') return way
    if (health === 'silent' && owner && recordedAddress(owner.address) === place.address) {
      throw new CommandFailure(
        EXIT.noServer,
        `The server of ${home} (process ${owner.pid} on ${owner.host}) runs, but has not answered for ` +
          `${HEALTH_TIMEOUT / 1000} s: it is stopped or overloaded. Wait and try again, or restart it.`
      )
    }
  }
  return undefined
}

async function startOwn(context: CommandContext, config: LoadedConfig, whenNone: WhenNone): Promise<RunningServer> {
  const [{ startServer }, { createLogger }, { LogLevels }, definitions] = await Promise.all([
    import('../core/http/server.ts'),
    import('../core/system/log.ts'),
    import('../core/system/log-levels.ts'),
    context.definitions()
  ])
  const log = createLogger(config.core.log_level, { file: join(config.paths.logs, 'corral.log') })
  return await startServer({
    config: whenNone === 'aside' ? asideConfig(config) : config,
    definitions: whenNone === 'usual' ? definitions : withoutEngineSearch(definitions),
    logs: new LogLevels(log, config.core.log_levels)
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

/** A command that only looks at models must not start a llama.cpp build, which would be cut off when the command ends. */
function withoutEngineSearch(definitions: PluginDefinition[]): PluginDefinition[] {
  return definitions.map(definition =>
    definition.offers?.includes('runtimes')
      ? {
          ...definition,
          setup: async (...given) => ({ ...(await definition.setup(...given)), start: undefined, hooks: undefined })
        }
      : definition
  )
}

function isHeld(error: unknown): boolean {
  return error instanceof Error && error.name === 'DataDirectoryError' && 'reason' in error && error.reason === 'held'
}

function noServer(settings: ServerSettings, without?: Without): CommandFailure {
  const { named, local, usual } = planAddresses(settings)
  const where = named ?? usual
  const place = where ? ` at ${where}` : ''
  const { so, or } = typeof without === 'object' ? without : { so: without, or: undefined }
  const consequence = so === undefined ? '' : `, ${so}`
  const start =
    or === undefined ? 'Start one with: corral serve' : `Start one with "corral serve", or ${or(settings.paths.home)}.`
  const reason = local
    ? `No server runs${place}${place ? ' or' : ''} on ${settings.paths.home}${consequence}. ${start}`
    : `No server answers${place}${consequence}. Start one there, or check --host and --port.`
  return new CommandFailure(EXIT.noServer, reason)
}
