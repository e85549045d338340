import type { AddressInfo } from 'node:net'
import { isDeepStrictEqual } from 'node:util'
import type { FastifyInstance } from 'fastify'
import { watchConfig } from '../config/config-watch.ts'
import type { LoadedConfig } from '../config/load.ts'
import { LiveConfig, Reloader, type ReloaderOptions } from '../config/reloader.ts'
import type { ReloadReport } from '../contracts/native-records.ts'
import { CorralError } from '../errors.ts'
import type { PluginDefinition } from '../plugins/plugin.ts'
import { PluginHost } from '../plugins/plugin-host.ts'
import { claimDataDirectory } from '../system/data-directory.ts'
import { parseDuration } from '../system/duration.ts'
import type { LogLevels } from '../system/log-levels.ts'
import { version } from '../system/package-info.ts'
import { createApplication } from './application.ts'
import { CLOSE_LINGER, httpOrigin, listenError } from './listening.ts'
import { openPrivateSocket, type PrivateSocket } from './private-socket.ts'
import { serverFolders } from './server-folders.ts'

export interface RunningServer {
  address: string
  /** Path of the socket that only this user can open, if any. */
  socket: string | undefined
  app: FastifyInstance
  /** Reloads the configuration. @throws as `Reloader.reload` */
  reload(): Promise<ReloadReport>
  /** Stops it: ends requests within `shutdown_grace`, stops engines, releases the data directory. */
  close(): Promise<void>
}

interface ServerOptions {
  config: LoadedConfig
  definitions: PluginDefinition[]
  logs: LogLevels
  /** As `ReloaderOptions.load`. If absent, the configuration cannot be reloaded. */
  load?: ReloaderOptions['load']
  find?: ReloaderOptions['find']
}

declare module 'fastify' {
  interface FastifyInstance {
    reloadConfig: RunningServer['reload']
    /** The current configuration file, absolute; undefined if there is none. */
    configFile: () => string | undefined
    configEditor: Pick<Reloader, 'file' | 'rewrite'>
  }
}

/** Milliseconds between two polls of `config.yaml`, if it is watched. */
const LOOK_AT_CONFIG = 300

/**
 * Claims the data directory, sets up the plugins and listens. Long work (finding or building an engine) continues in
 * the background.
 * @throws if another server uses the directory, a required plugin fails or the port is taken
 */
export async function startServer({
  config: initial,
  definitions,
  logs,
  load = notReloadable,
  find
}: ServerOptions): Promise<RunningServer> {
  const live = new LiveConfig(initial)
  const config = live.view
  const { core, paths } = config
  const secure = core.tls.certificate !== ''
  const claim = await claimDataDirectory(paths, { address: httpOrigin(core, secure), version })
  const log = logs.part('server')
  if (claim.before !== undefined && isNewer(claim.before, version)) {
    log.warn(
      `corral ${claim.before}, which is newer than this ${version}, used ${paths.home} before. Data in newer formats is left alone. If something is missing, restore the backup from before the upgrade (docs/admin.md).`
    )
  }
  const shutdown = new AbortController()
  let close: (() => Promise<void>) | undefined
  try {
    const app = await createApplication(core, logs.part('http'), serverFolders(paths))
    const host = new PluginHost({ definitions, config, logs, signal: shutdown.signal })
    const closing = new AbortController()
    let begin = () => {}
    const reloader = new Reloader({
      begun: new Promise<void>(resolve => {
        begin = resolve
      }),
      live,
      definitions,
      plugins: host,
      applyCore(next, before) {
        // A level that was changed at runtime stays until the configuration changes.
        if (!isDeepStrictEqual([next.log_level, next.log_levels], [before.log_level, before.log_levels]))
          logs.configure(next.log_level, next.log_levels)
        app.connectionGuard.setLimits(next.limits)
        watch(next.watch_config)
      },
      load,
      find,
      log,
      signal: closing.signal
    })
    const reload = () => reloader.reload()
    app.decorate('reloadConfig', reload)
    app.decorate('configFile', () => live.current.file)
    app.decorate('configEditor', reloader)
    // The outcome is logged.
    const follow = () => void reload().catch(() => undefined)
    let unwatch: (() => void) | undefined
    const watch = (isOn: boolean) => {
      const { file } = live.current
      if (isOn && file !== undefined) unwatch ??= watchConfig(file, follow, LOOK_AT_CONFIG)
      else unwatch = void unwatch?.()
    }
    watch(core.watch_config)
    let socket: PrivateSocket | undefined
    close = async () => {
      closing.abort()
      begin()
      watch(false)
      const closed = app.close()
      socket?.stopAccepting()
      await host.stop()
      shutdown.abort(new CorralError('shutting_down', 'corral is shutting down.'))
      const linger = setTimeout(() => app.server.closeAllConnections(), CLOSE_LINGER)
      await closed
      clearTimeout(linger)
      await socket?.closed()
      await claim.release()
    }
    await host.register(app)
    await app.ready()
    await host.start()
    socket = await openPrivateSocket(app, paths, { log: logs.part('http'), ended: shutdown.signal })
    // Recorded before other programs can learn the address of the server.
    await claim.update({ address: httpOrigin(core, secure), socket: socket?.path })
    const address = await listen(app, core.host, core.port)
    if (address !== httpOrigin(core, secure)) await claim.update({ address, socket: socket?.path })
    begin()
    return { address, socket: socket?.path, app, reload, close }
  } catch (error) {
    await (close ? close() : claim.release())
    throw error
  }
}

async function notReloadable(): Promise<never> {
  const message = 'This server was started by a command and stops with it; it reads its settings only at the start.'
  throw new CorralError('not_implemented', message)
}

async function listen(app: FastifyInstance, host: string, port: number): Promise<string> {
  const { encrypts } = app.connectionGuard
  const textOf = (url: string) => `corral ${version} listens on ${encrypts ? url.replace('http:', 'https:') : url}`
  try {
    await app.listen({ host, port, backlog: 1024, listenTextResolver: textOf })
  } catch (error) {
    throw listenError({ host, port }, error)
  }
  return httpOrigin({ host, port: (app.server.address() as AddressInfo).port }, encrypts)
}

/** Whether a version such as `1.2.3` is newer than another one. Only the numbers are compared. */
function isNewer(version: string, other: string): boolean {
  const [a, b] = [version, other].map(text => text.split(/[.+-]/, 3).map(Number)) as [number[], number[]]
  const at = a.findIndex((number, index) => number !== b[index])
  return at !== -1 && a[at]! > (b[at] ?? 0)
}

/** Milliseconds after which a shutdown is abandoned and the process exits. */
export function shutdownLimit(config: LoadedConfig): number {
  return parseDuration(config.core.shutdown_grace)! + 10_000
}
