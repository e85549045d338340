import type { LoadedConfig } from '../../core/config/load.ts'
import type { ReloaderOptions } from '../../core/config/reloader.ts'
import type { Runtimes } from '../../core/contracts/builds.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import type { RunningServer } from '../../core/http/server.ts'
import { startedOnTerminal } from '../command-failure.ts'
import { type CommandContext, configPlaces, openTrusted } from '../context.ts'
import { formatPairs, wrapLines } from '../output.ts'
import type { ServerScreen } from '../server-screen.ts'

/** No JavaScript can run after these. A handler would make the processor fault again, endlessly. */
const FAULTS = ['SIGILL', 'SIGTRAP', 'SIGABRT', 'SIGBUS', 'SIGFPE', 'SIGSEGV'] as const

/** Errors that end the server, unless an optional plugin caused them. */
const ERRORS = ['uncaughtException', 'unhandledRejection'] as const

export async function serve(context: CommandContext): Promise<never> {
  const [
    [config, definitions],
    { shutdownLimit, startServer },
    { createLogger },
    { LogLevels },
    { giveBackMemoryAtRest },
    { default: closeWithGrace },
    { unknownWarning },
    { exposedKeysWarning },
    { reportExit, reportPluginsBy, survivesFault }
  ] = await Promise.all([
    openTrusted(context).then(async config => [config, await context.definitions()] as const),
    import('../../core/http/server.ts'),
    import('../../core/system/log.ts'),
    import('../../core/system/log-levels.ts'),
    import('../../core/system/give-back-memory.ts'),
    import('close-with-grace'),
    import('../../core/config/config-error.ts'),
    import('../../core/config/load.ts'),
    import('../plugin-watch.ts')
  ])
  const screen = process.stdout.isTTY ? await openScreen() : undefined
  const logs = new LogLevels(
    createLogger(config.core.log_level, screen && { show: screen.show }),
    config.core.log_levels
  )
  const log = logs.part('server')
  const onTerminal = startedOnTerminal()
  reportPluginsBy(message => log.error(message))
  for (const problem of config.unknown) log.warn(unknownWarning(problem))
  const exposed = await exposedKeysWarning(config)
  if (exposed) log.warn(exposed)
  const load: ReloaderOptions['load'] = async (file, text, definitions) => {
    const { loadConfig } = await import('../../core/config/load.ts')
    return await loadConfig({ ...configPlaces(context), definitions, file, text })
  }
  const find = async () => {
    context.trustChanged()
    return await context.definitions()
  }
  const starting = startServer({ config, definitions, logs, load, find })
  if (!onTerminal) {
    process.on('SIGHUP', () => {
      log.info('SIGHUP: reloading the configuration')
      // The log has the result, and a failed start is reported below.
      void starting.then(server => server.reload()).catch(() => undefined)
    })
  }
  const delay = shutdownLimit(config)
  let failure: unknown
  let hasStopped = false
  // The data directory is claimed from here on, so a signal waits until the start has ended.
  const signals = closeWithGrace(
    {
      delay,
      skip: [...FAULTS, ...ERRORS, ...(onTerminal ? [] : (['SIGHUP'] as const))],
      onSecondSignal: signal => log.warn(`second ${signal}: stopping immediately`),
      onTimeout: () => log.error(`not shut down after ${delay / 1000} s: stopping immediately`)
    },
    async ({ signal }) => {
      if (failure !== undefined) log.fatal({ err: failure }, 'unexpected error: shutting down')
      else log.info(`${signal}: shutting down`)
      // A failed start cleans up and is reported below.
      await (await starting.catch(() => undefined))?.close()
      log.info('stopped')
      hasStopped = true
      if (failure !== undefined) process.exit(1)
    }
  )
  const onError = (error: unknown) => {
    if (survivesFault(error)) return
    if (failure !== undefined) {
      log.fatal({ err: error }, 'another error while shutting down: stopping immediately')
      process.exit(1)
    }
    failure = error ?? new Error('it threw nothing')
    void signals.close()
  }
  for (const event of ERRORS) process.on(event, onError)
  process.on('exit', code => {
    if (!hasStopped && failure === undefined) reportExit(code)
  })
  const server = await starting.catch(error => {
    signals.uninstall()
    throw error
  })
  giveBackMemoryAtRest(() => server.app.drain.open === 0, log)
  if (screen) {
    const runtimes = server.app.getDecorator<Runtimes>('runtimes')
    screen.print(welcome(server, config, context.env.npm_lifecycle_event ? 'npx corral' : 'corral'))
    screen.worksWhile(() => runtimes.report().progress !== undefined)
  }
  return await new Promise<never>(() => {})
}

/** Loaded only when a person reads the output. */
async function openScreen(): Promise<ServerScreen> {
  const [{ ServerScreen }, { lineFormat }] = await Promise.all([
    import('../server-screen.ts'),
    import('../../core/system/readable-log.ts')
  ])
  return new ServerScreen(lineFormat())
}

/** Summary for people who start the server by hand. `npm start` does not put corral on the PATH. */
function welcome({ address, app }: RunningServer, { paths }: LoadedConfig, command: string): string {
  const models = app.getDecorator<Storage>('storage').list()
  const model = models[0]?.publicName
  // Lines may break at its blanks, because JSON and shells accept several lines.
  const body = `'{"model": ${JSON.stringify(model)}, "messages": [{"role": "user", "content": "Hi"}]}'`
  const call = process.platform === 'win32' ? `curl ${address}/api/chat -d` : `curl ${address}/api/chat \\\n  -d`
  const others = models.length > 1 ? ` and ${models.length - 1} more: ${command} list` : ''
  const place = formatPairs([
    ['Address', address],
    ['Page', app.web && `${address}${app.web.path}`],
    ['API', `${address}/docs`],
    ['SDKs', `${address}/v1`],
    ['Model', model ? `${model}${others}` : `none yet: ${command} pull <owner>/<name>`],
    ['Models in', paths.models],
    ['llama.cpp', buildText(app.getDecorator<Runtimes>('runtimes'), command)]
  ])
  const next = model
    ? `\n\n  Chat, in another terminal:\n  ${command} run ${model}\n\n  Call it:\n${wrapLines(`  ${call} ${body}`)}`
    : ''
  return `\n${wrapLines(place)}${next}\n\n  Ctrl-C stops the server.\n`
}

function buildText(runtimes: Runtimes, command: string): string {
  const { state, chosen } = runtimes.report()
  if (state === 'ready' && chosen) return `${chosen.version} (${chosen.runtime ?? chosen.kind}), from ${chosen.source}`
  if (state === 'failed') return `none works: ${command} doctor`
  return 'searching; progress is shown in the last line'
}
