import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { findFile, findHome } from '../core/config/config-file.ts'
import type { LoadedConfig } from '../core/config/load.ts'
import type { RunningServer } from '../core/http/server.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { Owner } from '../core/system/data-directory.ts'
import { dataPaths } from '../core/system/data-paths.ts'
import { CommandFailure, EXIT, interruption } from './command-failure.ts'
import { type CommandContext, configPlaces, openConfig } from './context.ts'
import {
  namesServer,
  planAddresses,
  readServerSettings,
  recordedAddress,
  type ServerSettings,
  toServerPlace,
  toServerSettings
} from './server-address.ts'
import { createClient, healthAt, type ServerAccess, type ServerClient, type ServerPlace } from './server-client.ts'

export interface ServerConnection {
  client: ServerClient
  /** The server that this process started, if it had to. */
  readonly own: RunningServer | undefined
}

/**
 * What to do when no server is running: `fail`, start one `aside` on a free loopback port just for this command, or start
 * one as `usual` on the configured address for as long as the command runs.
 */
export type WhenNone = 'fail' | 'aside' | 'usual'

/** Why the command needs a server, and an alternative to starting one, for the error when none is running. */
type Without = string | { why: string; or: (home: string) => string }

/** A server under load answers late. */
const HEALTH_TIMEOUT_MS = 10_000
/** How long a server that has claimed the data directory may take to answer, because it may be starting. */
const START_TIMEOUT_MS = 30_000

/**
 * Finds or starts a server, passes it to `use`, and stops it if it was started here. With `aside`, a request refused by
 * a server that is shutting down goes to another one.
 * @throws CommandFailure with `EXIT.noServer` if none can be reached
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
  // Only starting a server needs the whole configuration.
  const loadWhole = async () => (config ??= await openConfig(context))

  async function findOrStart(): Promise<ServerAccess> {
    const settings = (await readServerSettings(configPlaces(context))) ?? toServerSettings(await loadWhole())
    const { apiKey } = settings
    const deadline = performance.now() + START_TIMEOUT_MS
    for (;;) {
      signal.throwIfAborted()
      const place = await findServer(settings, deadline)
      if (place) return { ...place, apiKey }
      if (whenNone === 'fail') throw noServer(settings, without)
      try {
        own = await startOwn(context, await loadWhole(), whenNone)
        return { address: recordedAddress(own.address)!, socket: own.socket, apiKey }
      } catch (error) {
        // Another process was faster, so its server is used.
        if (!isHeld(error) || performance.now() > deadline) throw error
        await sleep(100)
      }
    }
  }

  // A server started by another command ends with that command, perhaps before it has received our request.
  const elsewhere = async () => (whenNone === 'aside' && !own ? await findOrStart() : undefined)
  try {
    // The fast path of most commands: the server of the data directory is found without reading the configuration.
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
  method: 'GET' | 'POST' | 'PUT' | 'DELETE',
  path: string,
  body?: object,
  { whenNone = 'aside', without }: { whenNone?: WhenNone; without?: Without } = {}
): Promise<Reply> {
  return await withServer(context, whenNone, ({ client }) => client.json<Reply>(method, path, body), without)
}

/** Waits for work with a server. @returns undefined if no server could be reached */
export async function unlessNoServer<Result>(work: Promise<Result>): Promise<Result | undefined> {
  return await work.catch(error => {
    if (error instanceof CommandFailure && error.exitCode === EXIT.noServer) return undefined
    throw error
  })
}

/**
 * The private socket of the server that has claimed the data directory, if no other address is named and it answers.
 * @throws ConfigError if a configuration file is named and cannot be read
 */
async function serverOfDataDirectory(context: CommandContext): Promise<ServerPlace | undefined> {
  const places = configPlaces(context)
  if (namesServer(places)) return undefined
  const paths = dataPaths(findHome(places).home, undefined)
  await findFile(places, paths.home)
  const { readOwner } = await import('../core/system/data-directory.ts')
  const owner = await readOwner(paths)
  const address = owner && recordedAddress(owner.address)
  if (address === undefined) return undefined
  const place = toServerPlace(address, paths.home, owner)
  const way = place.socket === undefined ? undefined : await answering(place, paths.home, owner)
  // The TCP address of the server may require a key from the configuration.
  return way?.socket === undefined ? undefined : way
}

/** Finds the server to use. Undefined if none is running and one may be started here. */
async function findServer(settings: ServerSettings, deadline: number): Promise<ServerPlace | undefined> {
  const { paths } = settings
  const plan = planAddresses(settings)
  const { readOwner } = await import('../core/system/data-directory.ts')
  if (plan.named) {
    // An unreadable data directory is irrelevant if a server was named.
    const owner = plan.local ? await readOwner(paths).catch(() => undefined) : undefined
    const place = await answering(toServerPlace(plan.named, paths.home, owner), paths.home, owner)
    if (place) return place
  }
  if (!plan.local) throw noServer(settings)
  for (;;) {
    const owner = await readOwner(paths)
    if (!owner) break
    const address = recordedAddress(owner.address)
    const place = address && (await answering(toServerPlace(address, paths.home, owner), paths.home, owner))
    if (place) {
      if (!plan.named || !plan.byFlag || plan.named === address) return place
      throw new CommandFailure(
        EXIT.noServer,
        `No server is running at ${plan.named}. The server of ${paths.home} is at ${address}: leave out --host and --port to use it.`
      )
    }
    if (performance.now() > deadline) {
      throw new CommandFailure(
        EXIT.noServer,
        `Process ${owner.pid} on ${owner.host} uses ${paths.home}, but no server answers at ${owner.address}. ` +
          'Wait until it has started, or stop it and try again.'
      )
    }
    await sleep(100)
  }
  return plan.usual ? await answering(toServerPlace(plan.usual, paths.home, undefined), paths.home) : undefined
}

/**
 * Checks that a server answers, through its socket if that can be opened. Undefined if none does.
 * @param owner the server that has claimed the data directory
 * @throws CommandFailure if that server is meant and does not answer
 */
async function answering(place: ServerPlace, home: string, owner?: Owner): Promise<ServerPlace | undefined> {
  const byAddress = { address: place.address, why: `this user cannot open ${place.socket}` }
  for (const way of place.socket === undefined ? [place] : [place, byAddress]) {
    const health = await healthAt(way, HEALTH_TIMEOUT_MS)
    if (health === 'ok') return way
    if (health === 'silent' && owner && recordedAddress(owner.address) === place.address) {
      throw new CommandFailure(
        EXIT.noServer,
        `The server of ${home} (process ${owner.pid} on ${owner.host}) is running, but has not answered for ` +
          `${HEALTH_TIMEOUT_MS / 1000} s. It is stopped or overloaded. Wait and try again, or restart it.`
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
  /** For a server for one command, which no other command should find. */
  const hidden = {
    core: { ...config.core, host: '127.0.0.1', port: 0 },
    sections: { ...config.sections, 'api-ollama': { ...config.sections['api-ollama'], listen: '' } }
  }
  return await startServer({
    config: whenNone === 'aside' ? { ...config, ...hidden } : config,
    definitions: whenNone === 'usual' ? definitions : withoutEngineSearch(definitions),
    logs: new LogLevels(log, config.core.log_levels)
  })
}

/** Starts no llama.cpp build, which would be aborted when the command ends. */
function withoutEngineSearch(definitions: PluginDefinition[]): PluginDefinition[] {
  return definitions.map(definition => {
    if (!definition.offers?.includes('runtimes')) return definition
    const setup: PluginDefinition['setup'] = async (...given) => {
      return { ...(await definition.setup(...given)), start: undefined, hooks: undefined }
    }
    return { ...definition, setup }
  })
}

function isHeld(error: unknown): boolean {
  return error instanceof Error && error.name === 'DataDirectoryError' && 'reason' in error && error.reason === 'held'
}

function noServer(settings: ServerSettings, without?: Without): CommandFailure {
  const { named, local, usual } = planAddresses(settings)
  const where = named ?? usual
  const place = where ? ` at ${where}` : ''
  const { why, or } = typeof without === 'object' ? without : { why: without, or: undefined }
  const because = why === undefined ? '' : ` ${why}`
  const start =
    or === undefined ? 'Start one with: corral serve' : `Start one with "corral serve", or ${or(settings.paths.home)}.`
  const reason = local
    ? `No server is running${place}${place ? ' or' : ''} for ${settings.paths.home}.${because} ${start}`
    : `No server is running${place}.${because} Start one there, or check --host and --port.`
  return new CommandFailure(EXIT.noServer, reason)
}
