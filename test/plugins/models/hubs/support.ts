import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import pino from 'pino'
import type { Test } from 'tap'
import type { Hub } from '../../../../core/contracts/hubs.ts'
import type { PluginContext, PluginDefinition } from '../../../../core/plugins/plugin.ts'
import type { HubResponse } from '../../../../plugins/models/hubs/hub-fetch.ts'

export const SHA256 = 'ab'.repeat(32)
export const SHA1 = 'cd'.repeat(20)
export const NOW = Date.UTC(2026, 0, 2, 3, 4, 5)

export interface Seen {
  method: string
  /** Path with query. */
  url: string
  headers: IncomingMessage['headers']
}

export interface Reply {
  status?: number
  headers?: Record<string, string>
  /** Anything but a string or bytes is sent as JSON. */
  body?: unknown
  /** Closes the connection instead. */
  cut?: boolean
}

export interface TestServer {
  url: string
  seen: Seen[]
  close(): Promise<void>
}

/** Starts a server whose answers come from a function. No answer means 404. */
export async function serve(t: Test, answer: (seen: Seen) => Reply | undefined): Promise<TestServer> {
  const seen: Seen[] = []
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    const question: Seen = { method: request.method!, url: request.url!, headers: request.headers }
    seen.push(question)
    const {
      status = 200,
      headers = {},
      body = '',
      cut
    } = answer(question) ?? { status: 404, body: { error: 'Not found' } }
    if (cut) return request.socket.destroy()
    const plain = typeof body === 'string' || Buffer.isBuffer(body)
    const bytes = Buffer.from(plain ? (body as string) : JSON.stringify(body))
    response.writeHead(status, {
      'content-type': plain ? 'text/plain' : 'application/json',
      'content-length': bytes.length,
      ...headers
    })
    response.end(question.method === 'HEAD' ? undefined : bytes)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const close = async () => {
    server.closeAllConnections()
    if (server.listening) await new Promise(done => server.close(done))
  }
  t.teardown(close)
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen, close }
}

/** Variables that hubs read. Tests clear the machine's own values. */
const VARIABLES = (
  'HF_ENDPOINT HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_OFFLINE TRANSFORMERS_OFFLINE ' +
  'HF_HUB_DISABLE_IMPLICIT_TOKEN CSGHUB_DOMAIN CSGHUB_TOKEN CSGHUB_TOKEN_PATH CSGHUB_HOME MODELSCOPE_ENDPOINT ' +
  'MODELSCOPE_API_TOKEN MODELSCOPE_ACCESS_TOKEN HTTP_PROXY http_proxy HTTPS_PROXY https_proxy'
).split(' ')

/** Sets the environment until the test ends. Of the variables that hubs read, only these are set. */
export function withEnvironment(t: Test, env: Record<string, string>): void {
  const before = VARIABLES.map(name => [name, process.env[name]] as const)
  for (const name of VARIABLES) delete process.env[name]
  Object.assign(process.env, { HF_TOKEN_PATH: '/nowhere/token', ...env })
  t.teardown(() => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  })
}

/** Returns the hub that a plugin adds with these settings and this environment. */
export async function createTestHub(
  t: Test,
  plugin: PluginDefinition,
  options: Record<string, unknown> = {},
  env: Record<string, string> = {}
): Promise<Hub> {
  withEnvironment(t, env)
  const controller = new AbortController()
  let hub: Hub | undefined
  const context = {
    log: pino({ level: 'silent' }),
    signal: controller.signal,
    service: () => ({
      addHub(added: Hub) {
        hub = added
      }
    })
  } as unknown as PluginContext
  const settings = { endpoint: '', token: '', mirrors: [], proxy: '', connect_timeout: '2s', ...options }
  const offer = await plugin.setup(context, settings as never)
  t.teardown(async () => {
    controller.abort()
    await offer.stop?.()
  })
  return hub!
}

/** Creates a hub's response. `said` is its JSON. */
export const answer = (status: number, more: Partial<HubResponse> & { said?: unknown } = {}): HubResponse => {
  const { said, ...rest } = more
  const headers = more.headers ?? {}
  return {
    status,
    url: 'https://hub.example.org/x',
    headers,
    hops: [headers],
    text: said === undefined ? '' : JSON.stringify(said),
    credentials: undefined,
    ...rest
  }
}

/** Of a response to a request with a token. */
export const WITH_TOKEN = { credentials: { authorization: 'Bearer hf_secret' } }
