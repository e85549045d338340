import { Agent, type IncomingMessage, request as openRequest } from 'node:http'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import type { EngineAddress } from './launch.ts'

export interface EngineRequest {
  method: 'GET' | 'POST'
  path: string
  body?: string | Buffer
  headers?: Record<string, string>
  signal: AbortSignal
}

export interface EngineResponse {
  status: number
  headers: Record<string, string | string[] | undefined>
  body: Readable
}

/** HTTP to one engine. */
export type Upstream = ReturnType<typeof createUpstream>

export interface UpstreamHooks {
  /** Whether the engine's process runs. */
  alive(): boolean
  /** The error to give for a connection that broke. */
  explain(error: Error): Promise<Error>
  /** Called for each request, before it is sent. */
  onRequest?(): void
}

/** The connection failed before an answer came; with a living engine another one may work. */
const BROKEN = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ENOTCONN'])
/** A Unix socket whose queue of new connections is full refuses at once; the request is repeated after so many milliseconds. */
const BACKLOG_WAITS = [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]

/** Routes that save slots to files and restore them. */
const SLOT_FILES = '/slots/'

/** Whether it is a comment of an event stream, which llama-server sends while it has nothing to say. */
const isSignOfLife = (chunk: Buffer) => chunk.length <= 3 && chunk[0] === 0x3a

/**
 * Passes a response on as a stream: no more bytes are fetched than its reader takes, and destroying it cuts the connection. When
 * the connection breaks, it ends with the error that `explain` makes of that.
 */
function createBody(
  message: IncomingMessage,
  { onData, onClose, explain }: { onData(chunk: Buffer): void; onClose(): void; explain(error: Error): Promise<Error> }
): Readable {
  const body = new Readable({
    read: () => message.resume(),
    destroy(error, done) {
      onClose()
      message.destroy()
      done(error)
    }
  })
  message.on('data', (chunk: Buffer) => {
    onData(chunk)
    if (!body.destroyed && !body.push(chunk)) message.pause()
  })
  message.on('end', () => {
    onClose()
    if (!body.destroyed) body.push(null)
  })
  message.on('error', error => {
    if (!body.destroyed) void explain(error).then(explained => body.destroy(explained))
  })
  body.on('error', () => {
    // A stream that breaks while nobody reads it must not end the whole process; readers still get the error.
  })
  return body
}

/**
 * Requests to an engine. A connection serves one request: llama-server closes it after a stream although it promises
 * otherwise. There are no time limits.
 */
export function createUpstream({ listen, key }: EngineAddress, hooks: UpstreamHooks) {
  const agent = new Agent({ keepAlive: false })
  /** Ends one open request each. */
  const open = new Set<(error: Error) => void>()
  let closed: Error | undefined
  let received = 0
  let filing = 0

  function send({ method, path, body, headers, signal }: EngineRequest): Promise<EngineResponse> {
    return new Promise((resolve, reject) => {
      let response: Readable | undefined
      const isFiling = path.startsWith(SLOT_FILES)
      const forget = () => {
        if (open.delete(finish) && isFiling) filing--
        signal.removeEventListener('abort', onAbort)
      }
      const finish = (error: Error) => {
        forget()
        response?.destroy(error)
        outgoing.destroy(error)
        reject(error)
      }
      const onAbort = () => finish(signal.reason)
      const outgoing = openRequest({
        ...('socketPath' in listen ? { socketPath: listen.socketPath } : { host: listen.host, port: listen.port }),
        agent,
        method,
        path,
        headers: {
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
          authorization: `Bearer ${key}`
        }
      })
      open.add(finish)
      if (isFiling) filing++
      hooks.onRequest?.()
      signal.addEventListener('abort', onAbort, { once: true })
      outgoing.on('response', message => {
        received++
        response = createBody(message, {
          onData: chunk => {
            if (!isSignOfLife(chunk)) received += chunk.length
          },
          onClose: forget,
          explain: hooks.explain
        })
        resolve({ status: message.statusCode!, headers: message.headers, body: response })
      })
      outgoing.on('error', error => {
        // Once there is an answer, its stream gets the error.
        if (response) return
        forget()
        reject(error)
      })
      outgoing.end(body)
    })
  }

  /** Whether to try again after a failure that came before any answer. Waits where that helps. */
  async function mayRetry(error: Error, attempt: number, signal: AbortSignal): Promise<boolean> {
    const code = 'code' in error ? String(error.code) : ''
    if (code === 'EAGAIN') {
      const wait = BACKLOG_WAITS[attempt]
      if (wait === undefined) return false
      await sleep(wait, undefined, { signal }).catch(() => {
        // The next attempt begins with a look at the signal.
      })
      return hooks.alive()
    }
    return attempt === 0 && BROKEN.has(code) && hooks.alive()
  }

  return {
    /** Resolves at the response's headers. */
    async request(request: EngineRequest): Promise<EngineResponse> {
      for (let attempt = 0; ; attempt++) {
        request.signal.throwIfAborted()
        if (closed) throw closed
        try {
          return await send(request)
        } catch (error) {
          if (!(error instanceof Error) || error === closed || request.signal.aborted) throw error
          if (!(await mayRetry(error, attempt, request.signal))) throw await hooks.explain(error)
        }
      }
    },
    /** Ends all open requests with this error, and refuses new ones with it. */
    cut(error: Error): void {
      closed ??= error
      for (const finish of [...open]) finish(error)
    },
    /**
     * Requests that are open, bytes and answers received so far without what only keeps connections alive, and whether
     * slots are saved or restored.
     */
    activity: () => ({ open: open.size, received, filing: filing > 0 })
  }
}
