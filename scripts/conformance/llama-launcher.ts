import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { join, resolve } from 'node:path'
import { pino } from 'pino'
import { stringify } from 'yaml'
import { loadConfig } from '../../core/config/load.ts'
import { errorMessage } from '../../core/errors.ts'
import { startServer } from '../../core/http/server.ts'
import { LogLevels } from '../../core/system/log-levels.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { ROUTER_HOME, STAND_INS } from './llama-models.ts'

const SWITCHES = new Set([
  ...['--offline', '--cont-batching', '--embedding', '--reranking', '--metrics', '--slots', '--no-slots', '--no-ui'],
  ...['--no-models-autoload', '--jinja', '--no-jinja', '--no-mmproj', '--ui-mcp-proxy', '--kv-unified', '--swa-full'],
  ...['--context-shift', '--no-cache-idle-slots', '--backend_sampling', '--verbose']
])
/** Flags passed to the engine unchanged. */
const PASSED = new Set([
  ...[
    '--batch-size',
    '--ubatch-size',
    '--threads',
    '--n-gpu-layers',
    '--pooling',
    '-fa',
    '--grp-attn-n',
    '--grp-attn-w'
  ],
  ...[
    '--spec-type',
    '--spec-draft-n-max',
    '--spec-draft-n-min',
    '--spec-synth-len',
    '--spec-synth-rates',
    '--cache-ram'
  ],
  ...['--chat-template', '--reasoning', '--reasoning-format', '--kv-unified', '--swa-full', '--context-shift'],
  ...['--no-cache-idle-slots', '--backend_sampling', '--no-jinja']
])
const PASSED_PATHS = new Set(['--model-draft', '--chat-template-file'])
/** Model names in the tests' requests, which llama-server ignores. */
const NAMES = [
  ...['test', 'codellama70b', 'gpt-3.5-turbo', 'gpt-3.5-turbo-instruct', 'davinci-002', 'text-embedding-3-small'],
  'gpt-4.1'
]

function readFlags(args: readonly string[], cwd: string): { flags: Map<string, string>; passed: string[] } {
  const flags = new Map<string, string>()
  const passed: string[] = []
  for (let at = 0; at < args.length; at++) {
    const flag = args[at]!
    const value = SWITCHES.has(flag) ? undefined : args[++at]!
    flags.set(flag, value ?? '')
    if (PASSED.has(flag)) passed.push(flag, ...(value === undefined ? [] : [value]))
    if (PASSED_PATHS.has(flag)) passed.push(flag, resolve(cwd, value!))
  }
  return { flags, passed }
}

/** Settings of the single model that llama-server would serve. */
function modelSettings(flags: ReadonlyMap<string, string>, passed: readonly string[], cwd: string): object {
  const getNumber = (flag: string, otherwise: number) => Number(flags.get(flag) ?? otherwise)
  const slots = getNumber('--parallel', 4)
  const lora = flags.get('--lora')
  const idle = flags.get('--sleep-idle-seconds')
  return {
    preload: true,
    aliases: [...new Set([...(flags.get('--alias')?.split(',') ?? []), ...NAMES])],
    keep_alive: idle === undefined ? -1 : `${idle}s`,
    arguments: passed,
    ...(lora !== undefined && { lora: [{ path: resolve(cwd, lora) }] }),
    ...(flags.has('--no-mmproj') && { projector: '' }),
    options: {
      // llama-server's flag is the total of all slots.
      num_ctx: Math.floor(getNumber('--ctx-size', 4096) / slots),
      num_parallel: slots,
      temperature: getNumber('--temp', 0.8),
      top_p: 0.95,
      seed: getNumber('--seed', -1),
      max_tokens: getNumber('--n-predict', -1),
      ...(flags.has('-ctk') && { cache_type_k: flags.get('-ctk') }),
      ...(flags.has('-ctv') && { cache_type_v: flags.get('-ctv') })
    }
  }
}

/** A config.yaml equivalent to llama-server's flags, and the data directory with the models. */
function configFor(args: readonly string[], cwd: string): { config: object; home: string } {
  const { flags, passed } = readFlags(args, cwd)
  const repository = flags.get('--hf-repo')?.split(':')[0]
  const file = flags.get('--hf-file')
  const found = Object.entries(STAND_INS).find(
    ([, one]) => one.repository === repository && (!file || one.file === file)
  )
  if (repository !== undefined && !found) throw new Error(`There is no stand-in for ${repository} ${file ?? ''}.`)
  const origins = flags.get('--cors-origins')
  const apiKey = flags.get('--api-key')
  const config = {
    host: flags.get('--host')!.split(',')[0],
    port: Number(flags.get('--port')),
    shutdown_grace: 0,
    storage: { demo_model: false },
    security: {
      // Pages of this machine are always allowed.
      origins: origins === undefined || origins === 'localhost' ? [] : origins.split(','),
      api_keys: apiKey === undefined ? [] : [apiKey]
    },
    ...(found
      ? {
          default_model: flags.get('--alias')?.split(',')[0] ?? found[1].name,
          models: { [found[1].name]: modelSettings(flags, passed, cwd) }
        }
      : {
          defaults: { num_ctx: Number(flags.get('--ctx-size') ?? 4096), num_parallel: 1 },
          scheduler: { max_loaded_models: Number(flags.get('--models-max') ?? 4) }
        })
  }
  return { config, home: found?.[0] ?? ROUTER_HOME }
}

export interface LauncherOptions {
  /** Data directories with the models. */
  homes: string
  work: string
  build: string
  hub: string
}

/**
 * Starts corral in this process instead of llama-server. `as_llama_server.py` sends the flags to the socket at `path`,
 * and the server stops when that connection closes.
 */
export async function startLauncher(path: string, options: LauncherOptions): Promise<{ close(): void }> {
  const listener = createServer({ allowHalfOpen: true }, socket => {
    // A killed client breaks the connection, which then closes.
    socket.on('error', () => socket.destroy())
    serve(socket, options).catch((error: unknown) => socket.end(errorMessage(error)))
  })
  await new Promise<void>(resolve => listener.listen(path, resolve))
  return { close: () => void listener.close() }
}

async function serve(socket: Socket, { homes, work, build, hub }: LauncherOptions): Promise<void> {
  const ended = new Promise<void>(resolve => {
    socket.once('end', resolve)
    socket.once('close', () => resolve())
  })
  const { args, cwd } = await firstLine(socket)
  const { config, home: from } = configFor(args, cwd)
  const home = mkdtempSync(join(work, 'home-'))
  try {
    cpSync(join(homes, from), home, { recursive: true })
    const server = await startIn(home, config, { build, hub })
    await ended
    await server.close()
    socket.end()
  } finally {
    rmSync(home, { recursive: true, force: true, maxRetries: 3 })
  }
}

/** Starts corral in this process, with a data directory. */
export async function startIn(
  home: string,
  config: object,
  { build, hub }: Pick<LauncherOptions, 'build'> & Partial<LauncherOptions>
) {
  writeFileSync(join(home, 'config.yaml'), stringify(config))
  const env = { ...process.env, CORRAL_HOME: home, CORRAL_LLAMA_CPP: build, ...(hub && { HF_ENDPOINT: hub }) }
  const load = (file?: string) => loadConfig({ flags: {}, env, cwd: home, definitions: builtInPlugins, file })
  const logs = new LogLevels(pino({ level: 'info' }, pino.destination(join(home, 'log.jsonl'))))
  return await startServer({ config: await load(), definitions: builtInPlugins, logs, load })
}

function firstLine(socket: Socket): Promise<{ args: string[]; cwd: string }> {
  return new Promise((resolve, reject) => {
    let text = ''
    socket.setEncoding('utf8').on('data', (data: string) => {
      text += data
      if (!text.endsWith('\n')) return
      try {
        resolve(JSON.parse(text))
      } catch (error) {
        reject(error)
      }
    })
  })
}
