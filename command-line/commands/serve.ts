import type { Command } from 'commander'
import { exposedKeysWarning } from '../../core/config/exposed-keys.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import type { RunningServer } from '../../core/http/server.ts'
import { startedOnTerminal } from '../closed-terminal.ts'
import { type CommandContext, openConfig } from '../context.ts'

export function defineServe(program: Command, context: CommandContext): void {
  program
    .command('serve')
    .description('serve models over REST until stopped')
    .addHelpText(
      'after',
      `
Listens at once. The first time, llama.cpp is found, downloaded or built in the background, and requests that need it
wait. Ctrl-C or SIGTERM stops the server: running answers have "shutdown_grace" (10s) to finish; a second signal stops it
at once. SIGHUP has the server read its configuration again, as "corral reload" does; one that was started on a terminal
it stops instead.
Exit codes: 0 stopped, 1 cannot start (another server holds the data directory, the port is in use), 2 configuration.

Examples:
  corral serve
  corral serve --port 8080 --log-level debug
  CORRAL_API_KEYS=secret corral serve --host 0.0.0.0
  curl http://127.0.0.1:11435/api/chat -d '{"model":"corral/tiny-chat","messages":[{"role":"user","content":"Hi"}]}'`
    )
    .action(() => serve(context))
}

/** After these no JavaScript can run: a handler would only have the processor fault again, without end. */
const FAULTS = ['SIGILL', 'SIGTRAP', 'SIGABRT', 'SIGBUS', 'SIGFPE', 'SIGSEGV'] as const

async function serve(context: CommandContext): Promise<never> {
  const [
    config,
    definitions,
    { shutdownLimit, startServer },
    { createLogger },
    { LogLevels },
    { default: closeWithGrace },
    { unknownWarning }
  ] = await Promise.all([
    openConfig(context),
    context.definitions(),
    import('../../core/http/server.ts'),
    import('../../core/system/log.ts'),
    import('../../core/system/log-levels.ts'),
    import('close-with-grace'),
    import('../../core/config/config-error.ts')
  ])
  const logs = new LogLevels(createLogger(config.core.log_level), config.core.log_levels)
  const log = logs.part('server')
  const onTerminal = startedOnTerminal()
  for (const problem of config.unknown) log.warn(unknownWarning(problem))
  const exposed = await exposedKeysWarning(config)
  if (exposed) log.warn(exposed)
  const load = async (file: string | undefined) => {
    const { loadConfig } = await import('../../core/config/load.ts')
    return await loadConfig({ flags: context.flags(), env: context.env, cwd: context.cwd, definitions, file })
  }
  const starting = startServer({ config, definitions, logs, load })
  if (!onTerminal) {
    process.on('SIGHUP', () => {
      log.info('SIGHUP: reading the configuration again')
      // What became of it is in the log; a start that fails is reported below.
      void starting.then(server => server.reload()).catch(() => undefined)
    })
  }
  const delay = shutdownLimit(config)
  // From here on the data directory is claimed: a signal during the start waits until the start has ended.
  const signals = closeWithGrace(
    {
      delay,
      skip: [...FAULTS, ...(onTerminal ? [] : (['SIGHUP'] as const))],
      onSecondSignal: signal => log.warn(`second ${signal}: stopping at once`),
      onSecondError: error => log.fatal({ err: error }, 'another error while shutting down: stopping at once'),
      onTimeout: () => log.error(`not shut down after ${delay / 1000} s: stopping at once`)
    },
    async ({ err, signal }) => {
      if (err) log.fatal({ err }, 'unexpected error: shutting down')
      else log.info(`${signal}: shutting down`)
      // A start that fails cleans up by itself, and is reported below.
      await (await starting.catch(() => undefined))?.close()
      log.info('stopped')
    }
  )
  const server = await starting.catch(error => {
    signals.uninstall()
    throw error
  })
  if (process.stdout.isTTY)
    process.stdout.write(`${welcome(server, context.env.npm_lifecycle_event ? 'npx corral' : 'corral')}\n`)
  return await new Promise<never>(() => {})
}

/** What to try next, for people who started the server by hand. With `npm start`, corral is not on the PATH. */
function welcome({ address, app }: RunningServer, command: string): string {
  const model = app.getDecorator<Storage>('storage').list()[0]?.publicName
  if (!model) return `\n  There is no model yet. Download one:  ${command} pull <owner>/<name>\n`
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'What is the capital of France?' }] })
  return `
  Chat:   ${command} run ${model}
  Call:   curl ${address}/api/chat -d '${body}'
  SDKs:   ${address}/v1
  Ctrl-C stops the server.
`
}
