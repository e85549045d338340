import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir, userInfo } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from '../../core/system/free-port.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { engineBuildFolder } from '../../test/support/engine-build.ts'
import type { EngineKind } from './benched-engines.ts'
import type { Contender, EngineSocket } from './benched-servers.ts'
import { createClient } from './client.ts'
import { MODEL } from './corral-server.ts'
import { processorTime, readStart, threadTime } from './measuring.ts'

/** Where `npm run bench:contenders` installs products that are not system packages. */
export const CACHE = join(packageRoot, '.cache', 'contenders')
const LITELLM = join(CACHE, 'litellm', 'bin', 'litellm')
const LITELLM_KEY = 'sk-bench-litellm-does-not-start-without-a-key'
const PORTKEY = join(CACHE, 'portkey', 'node_modules', '@portkey-ai', 'gateway', 'build', 'start-server.js')
const VLLM_ROUTER = join(packageRoot, '.cache', 'clients-python', 'vllm-router', 'bin', 'vllm-router')
/** LiteLLM imports modules for half a minute on a busy machine. */
const START_TIMEOUT_MS = 180_000

/** How to start another product in front of an engine. */
interface Product {
  /** Reason why it cannot run in front of this engine, if any. */
  missing(kind: EngineKind): string | undefined
  /** It only supports TCP, so it gets its own engine of the same kind, which is idle while others are measured. */
  needsPort?: true
  /** @param engine address of the engine; `url` only with `needsPort` */
  plan(engine: EngineSocket & { url: string; pid: number }, port: number, folder: string): Plan
}

interface Plan {
  command: [program: string, ...args: string[]]
  env?: Record<string, string>
  headers?: Record<string, string>
  /** Path that answers with 200 once the product is ready. */
  ready: string
}

const notInstalled = (name: string) => `${name} is not installed. Install it with: npm run bench:contenders`

export const PRODUCTS: Record<string, Product> = {
  nginx: {
    missing: () => (spawnSync('nginx', ['-v']).status === 0 ? undefined : notInstalled('nginx')),
    plan({ socketPath, key }, port, folder) {
      const config = join(folder, 'nginx.conf')
      writeFileSync(
        config,
        `${process.getuid?.() === 0 ? `user ${userInfo().username}; ` : ''}daemon off; worker_processes 1; pid ${folder}/nginx.pid; error_log stderr crit;
events { worker_connections 2048; }
http {
  access_log off; client_body_temp_path ${folder}; proxy_temp_path ${folder};
  fastcgi_temp_path ${folder}; uwsgi_temp_path ${folder}; scgi_temp_path ${folder};
  server {
    listen 127.0.0.1:${port} backlog=1024;
    client_max_body_size 0; client_body_buffer_size 2m;
    location / {
      proxy_pass http://unix:${socketPath}:; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Authorization "Bearer ${key}"; proxy_read_timeout 1h;
    }
  }
}
`
      )
      return { command: ['nginx', '-p', folder, '-c', config], ready: '/health' }
    }
  },
  router: {
    missing: kind => (kind === 'real' ? undefined : "llama-server's router can only start llama-servers"),
    plan({ pid }, port, folder) {
      const { args } = readStart(pid)
      const after = (flag: string) => args[args.indexOf(flag) + 1]!
      const preset = join(folder, 'models.ini')
      const settings = ['--model', '--ctx-size', '--parallel', '--threads', '--threads-batch'].map(
        flag => `${flag.slice(2)} = ${after(flag)}`
      )
      writeFileSync(preset, `[${MODEL}]\n${settings.join('\n')}\nload-on-startup = true\n`)
      const program = join(engineBuildFolder(), 'llama-server')
      return {
        command: [program, '--models-preset', preset, '--host', '127.0.0.1', '--port', `${port}`, '--offline'],
        ready: '/health'
      }
    }
  },
  'vllm-router': {
    missing: () => (existsSync(VLLM_ROUTER) ? undefined : notInstalled("vLLM's router")),
    needsPort: true,
    plan: ({ url }, port) => ({
      command: [
        VLLM_ROUTER,
        '--host',
        '127.0.0.1',
        '--port',
        `${port}`,
        '--policy',
        'round_robin',
        '--worker-urls',
        url
      ],
      ready: '/health'
    })
  },
  litellm: {
    missing: () => (existsSync(LITELLM) ? undefined : notInstalled('LiteLLM')),
    needsPort: true,
    plan({ url }, port, folder) {
      const config = join(folder, 'litellm.yaml')
      const model = {
        model_name: MODEL,
        litellm_params: { model: `openai/${MODEL}`, api_base: `${url}/v1`, api_key: 'none' }
      }
      // JSON is valid YAML.
      writeFileSync(config, JSON.stringify({ model_list: [model] }))
      return {
        command: [LITELLM, '--config', config, '--host', '127.0.0.1', '--port', `${port}`, '--telemetry', 'False'],
        env: { LITELLM_LOCAL_MODEL_COST_MAP: 'True', LITELLM_MASTER_KEY: LITELLM_KEY },
        headers: { authorization: `Bearer ${LITELLM_KEY}` },
        ready: '/health/liveliness'
      }
    }
  },
  portkey: {
    missing: () => (existsSync(PORTKEY) ? undefined : notInstalled("Portkey's gateway")),
    needsPort: true,
    plan: ({ url }, port) => ({
      command: [process.execPath, PORTKEY, '--headless', `--port=${port}`],
      env: { NODE_ENV: 'production' },
      headers: { 'x-portkey-provider': 'openai', 'x-portkey-custom-host': `${url}/v1`, authorization: 'Bearer none' },
      ready: '/'
    })
  }
}

/** A process and its descendants, without llama-servers. */
function family(pid: number): number[] {
  const name = readFileSync(`/proc/${pid}/comm`, 'utf8')
  const children = readdirSync(`/proc/${pid}/task`).flatMap(thread =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').split(' ').filter(Boolean).map(Number)
  )
  const below = children.flatMap(child => family(child))
  return name.startsWith('llama-server') ? below : [pid, ...below]
}

/** Starts a server program and returns when it is ready. */
async function startProgram({ command: [program, ...args], env, ready }: Plan, url: string) {
  const child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ['pipe', 'pipe', 'pipe'] })
  let log = ''
  for (const output of [child.stdout, child.stderr]) {
    output.setEncoding('utf8').on('data', text => {
      log = (log + text).slice(-4000)
    })
  }
  const exited = once(child, 'exit')
  const client = createClient({ origin: url })
  const end = Date.now() + START_TIMEOUT_MS
  const close = async () => {
    await client.close()
    child.kill()
    await exited
  }
  for (;;) {
    const status = await client.send({ method: 'GET', path: ready, headers: {}, stream: true }).then(
      ({ status }) => status,
      // It does not listen yet.
      () => 0
    )
    if (status === 200) return { pid: child.pid!, client, close }
    if (child.exitCode !== null || Date.now() > end) {
      await close()
      throw new Error(`${program} is not ready (status ${status}):\n${log}`)
    }
    await sleep(50)
  }
}

/** Starts another engine like this one, at a TCP port and without a key. */
async function engineAtPort(pid: number, folder: string) {
  const { command, args, env } = readStart(pid)
  const port = await freePort()
  const at = args.indexOf('--host')
  const own = [...args.slice(0, at), '--host', '127.0.0.1', '--port', `${port}`, ...args.slice(at + 2)]
  const { LLAMA_API_KEY: _, ...others } = env
  const url = `http://127.0.0.1:${port}`
  const plan: Plan = { command: [command, ...own], env: { ...others, XDG_CONFIG_HOME: folder }, ready: '/health' }
  return { url, ...(await startProgram(plan, url)) }
}

/**
 * Starts another product in front of the engine.
 * @param engine engine that corral started, with its process
 */
export async function startProduct(name: string, engine: EngineSocket & { pid: number }): Promise<Contender> {
  const product = PRODUCTS[name]!
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  const closers: (() => Promise<void>)[] = [async () => rmSync(folder, { recursive: true, force: true })]
  const close = async () => {
    for (const each of closers.toReversed()) await each()
  }
  try {
    let url = ''
    if (product.needsPort) {
      const own = await engineAtPort(engine.pid, folder)
      closers.push(own.close)
      url = own.url
    }
    const port = await freePort()
    const plan = product.plan({ ...engine, url }, port, folder)
    const { pid, client, close: end } = await startProgram(plan, `http://127.0.0.1:${port}`)
    closers.push(end)
    const isRouter = name === 'router'
    const pids = isRouter ? [pid] : family(pid)
    // The router has one thread per request. Only ticks include ended threads.
    const measureTime = isRouter ? processorTime : threadTime
    return { name, client, headers: plan.headers ?? {}, pids, measureTime, close }
  } catch (error) {
    await close()
    throw error
  }
}
