import { Agent, type Dispatcher, request } from 'undici'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import type { ServerKind } from './server-kinds.ts'

export interface RemoteServerSettings {
  /** Such as `http://127.0.0.1:9001/v1`. */
  url: string
  key?: string | undefined
}

interface RemoteServer extends RemoteServerSettings {
  running: number
  healthy: boolean
}

interface HealthLog {
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

export type RemoteServers = ReturnType<typeof createRemoteServers>
type ReplyBody = Dispatcher.ResponseData['body']
type Reader<Reply> = (body: ReplyBody) => Promise<Reply>

/** The server is at fault, so another server may succeed. */
class ServerFault extends Error {
  /** The client gets this error if no other server helps. */
  readonly outcome: CorralError
  /** Whether the server gets no requests until a health check succeeds. */
  readonly ejects: boolean

  constructor(outcome: CorralError, ejects = false) {
    super(outcome.message)
    this.outcome = outcome
    this.ejects = ejects
  }
}

/** Manages servers with the same model. `interval` and `timeout` of health checks are milliseconds. */
export function createRemoteServers(
  name: string,
  settings: readonly RemoteServerSettings[],
  { interval, timeout, log, kind }: { interval: number; timeout: number; log: HealthLog; kind: ServerKind }
) {
  // Answers may take any time. Only the client or the server ends them.
  const agent = new Agent({ headersTimeout: 0, bodyTimeout: 0, connect: { timeout } })
  const servers: RemoteServer[] = settings.map(({ url, key }) => {
    return { url: url.replace(/\/+$/, ''), key, running: 0, healthy: true }
  })
  const headersOf = ({ key }: RemoteServer) => (key ? { authorization: `Bearer ${key}` } : {})

  function setHealth(server: RemoteServer, healthy: boolean, reason = ''): void {
    if (server.healthy === healthy) return
    server.healthy = healthy
    if (healthy) log.info({ model: name, server: server.url }, 'a remote server is healthy again')
    else log.warn({ model: name, server: server.url, reason }, 'a remote server gets no requests until it is healthy')
  }

  async function check(server: RemoteServer): Promise<void> {
    try {
      const signal = abortAfter(timeout)
      const reply = await request(kind.health(server.url), { dispatcher: agent, headers: headersOf(server), signal })
      await reply.body.dump()
      setHealth(server, reply.statusCode < 500, `status ${reply.statusCode}`)
    } catch (error) {
      setHealth(server, false, errorMessage(error))
    }
  }

  let checking: Promise<unknown> = Promise.resolve()
  const timer = setInterval(() => {
    checking = Promise.all(servers.map(check))
  }, interval)
  timer.unref()

  function unreachable(error: unknown): ServerFault {
    return new ServerFault(unavailable(`No server of model "${name}" can be reached. Try again later.`, error), true)
  }

  async function askOne<Reply>(
    server: RemoteServer,
    path: string,
    body: object,
    signal: AbortSignal,
    read: Reader<Reply>,
    headers: Record<string, string> | undefined
  ): Promise<Reply> {
    server.running++
    try {
      const reply = await request(server.url + path, {
        method: 'POST',
        dispatcher: agent,
        headers: {
          ...headersOf(server),
          'content-type': 'application/json',
          ...headers
        },
        body: JSON.stringify(body),
        signal
      }).catch(error => {
        signal.throwIfAborted()
        throw unreachable(error)
      })
      const { statusCode } = reply
      const type = String(reply.headers['content-type'] ?? '')
      if (statusCode >= 300) throw refusal(name, statusCode, await readText(reply.body), reply.headers['retry-after'])
      if (!/json|event-stream/.test(type)) {
        await reply.body.dump().catch(() => undefined)
        const what = `A server of model "${name}" answered with ${type || 'something'}, which is not a model's answer.`
        throw new ServerFault(new CorralError('engine_crashed', `${what} Correct its address in config.yaml.`), true)
      }
      return await read(reply.body).catch(error => {
        signal.throwIfAborted()
        if (error instanceof CorralError) throw error
        throw unreachable(error)
      })
    } finally {
      server.running--
    }
  }

  return {
    /**
     * Sends a request to the healthy server with the fewest running requests, and reads the reply with `read`. A server
     * that is unreachable or misbehaves is ejected until a health check succeeds. The request moves to the next server
     * as long as `begun` reports that nothing has reached the client.
     */
    async ask<Reply>(
      path: string,
      body: object,
      signal: AbortSignal,
      read: Reader<Reply>,
      { begun = () => false, headers }: { begun?: () => boolean; headers?: Record<string, string> } = {}
    ): Promise<Reply> {
      const left = new Set(servers)
      let last: ServerFault | undefined
      while (left.size > 0) {
        // Ejected servers are tried last, because one may be back.
        const [server] = [...left].sort((a, b) => Number(b.healthy) - Number(a.healthy) || a.running - b.running)
        left.delete(server!)
        try {
          const reply = await askOne(server!, path, body, signal, read, headers)
          setHealth(server!, true)
          return reply
        } catch (error) {
          if (!(error instanceof ServerFault)) throw error
          if (error.ejects) setHealth(server!, false, error.message)
          if (begun()) {
            throw new CorralError('engine_crashed', `The server of model "${name}" ended its answer early.`)
          }
          last = error
        }
      }
      throw last!.outcome
    },
    async close(): Promise<void> {
      clearInterval(timer)
      await agent.destroy()
      await checking
    }
  }
}

/** Seconds after which a server that cannot be reached may be back, if it does not say so itself. */
const RETRY_AFTER_S = 5

const unavailable = (message: string, cause?: unknown, retryAfter?: unknown) =>
  new CorralError('engine_unreachable', message, { cause, retryAfter: Math.ceil(Number(retryAfter)) || RETRY_AFTER_S })

const readText = async (body: ReplyBody) => await body.text().catch(() => '')

/** Translates a rejection for the client. Quotes the server only if the request is at fault, and never its key. */
function refusal(name: string, status: number, text: string, retryAfter: unknown): CorralError | ServerFault {
  const { message, code } = errorIn(text)
  const server = `A server of model "${name}"`
  if (status === 401 || status === 403) {
    const what = `${server} rejects the key in config.yaml. Correct the key.`
    return new ServerFault(new CorralError('load_failed', what))
  }
  if (status === 404) {
    const what = `${server} has no model with the name in config.yaml. Correct "model".`
    return new ServerFault(new CorralError('model_not_found', what, { param: 'model' }))
  }
  if (status === 429) {
    const what = `The servers of model "${name}" have too many requests. Try again in a moment.`
    return new ServerFault(new CorralError('queue_full', what, { retryAfter: Math.ceil(Number(retryAfter)) || 1 }))
  }
  if (status >= 500) {
    const what = `${server} failed with status ${status}. Try again later.`
    const isPassing = status >= 502 && status <= 504
    const outcome = isPassing ? unavailable(what, undefined, retryAfter) : new CorralError('engine_crashed', what)
    return new ServerFault(outcome, true)
  }
  if (code === 'context_length_exceeded' || code === 'context_exceeded') {
    return new CorralError('context_exceeded', message || 'The prompt does not fit into the context. Shorten it.')
  }
  return new CorralError('invalid_request', `The server of model "${name}" rejects the request: ${message || status}`)
}

function errorIn(text: string): { message: string; code: string } {
  try {
    const { error } = JSON.parse(text)
    if (typeof error === 'string') return { message: error.slice(0, 400), code: '' }
    return { message: String(error?.message ?? '').slice(0, 400), code: String(error?.code ?? '') }
  } catch {
    return { message: '', code: '' }
  }
}
