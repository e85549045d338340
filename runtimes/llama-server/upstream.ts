import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, type Dispatcher } from 'undici'
import type { EngineRequest, EngineResponse } from '../../core/services.ts'
import type { EngineAddress } from './address.ts'

/** HTTP to one engine. */
export interface Upstream {
  /** Resolves at the response's headers. */
  request(request: EngineRequest): Promise<EngineResponse>
  /** Ends all open requests with this error, and refuses new ones with it. */
  cut(error: Error): void
  /** Requests that are open, and bytes and answers received so far. */
  activity(): { open: number; received: number }
}

export interface UpstreamHooks {
  /** Whether the engine's process runs. */
  alive(): boolean
  /** The error to give for a connection that broke. */
  explain(error: Error): Promise<Error>
}

/** The connection failed before an answer came; with a living engine another one may work. */
const BROKEN = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET', 'ENOTCONN'])
/** A Unix socket whose queue of new connections is full refuses at once; it is asked again after so many milliseconds. */
const BACKLOG_WAITS = [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]

function codeOf(error: Error): string {
  return 'code' in error ? String(error.code) : ''
}

/** Passes a response on as a stream: no byte is fetched that nobody takes, and destroying it cuts the connection. */
function createBody(controller: Dispatcher.DispatchController, onClose: (error: Error) => void) {
  let ended = false
  const body = new Readable({
    read: () => controller.resume(),
    destroy(error, done) {
      const reason = error ?? new Error('The response is not wanted any more.')
      onClose(reason)
      if (!ended) controller.abort(reason)
      done(error)
    }
  })
  body.on('error', () => {
    // A stream that breaks while nobody reads it must not end the whole process; readers are told all the same.
  })
  return {
    body,
    push(chunk: Buffer) {
      if (!body.destroyed && !body.push(chunk)) controller.pause()
    },
    end() {
      ended = true
      if (!body.destroyed) body.push(null)
    },
    fail(error: Error) {
      ended = true
      body.destroy(error)
    }
  }
}

/**
 * Requests to an engine. A connection serves one request: llama-server closes it after a stream although it promises
 * otherwise. There are no time limits.
 */
export function createUpstream({ listen, key }: EngineAddress, hooks: UpstreamHooks): Upstream {
  const socketPath = 'socketPath' in listen ? listen.socketPath : undefined
  const origin = 'socketPath' in listen ? 'http://localhost' : `http://${listen.host}:${listen.port}`
  const agent = new Agent({
    connect: { socketPath, timeout: 0 },
    pipelining: 0,
    headersTimeout: 0,
    bodyTimeout: 0
  })
  /** Ends one open request each. */
  const open = new Set<(error: Error) => void>()
  let closed: Error | undefined
  let received = 0

  function send({ method, path, body, headers, signal }: EngineRequest): Promise<EngineResponse> {
    return new Promise((resolve, reject) => {
      let controller: Dispatcher.DispatchController | undefined
      let response: ReturnType<typeof createBody> | undefined
      let over: Error | undefined

      const forget = () => {
        open.delete(finish)
        signal.removeEventListener('abort', onAbort)
      }
      const finish = (error: Error) => {
        over ??= error
        forget()
        if (response) response.body.destroy(over)
        else controller?.abort(over)
        reject(over)
      }
      const onAbort = () => finish(signal.reason)
      open.add(finish)
      signal.addEventListener('abort', onAbort, { once: true })

      agent.dispatch(
        {
          origin,
          method,
          path,
          body,
          headers: {
            ...(body === undefined ? {} : { 'content-type': 'application/json' }),
            ...headers,
            authorization: `Bearer ${key}`
          },
          reset: true
        },
        {
          onRequestStart(started) {
            controller = started
            if (over) started.abort(over)
          },
          onResponseStart(started, status, headers) {
            received++
            // An informational answer comes before the real one.
            if (status < 200) return
            response = createBody(started, error => {
              over ??= error
              forget()
            })
            resolve({ status, headers, body: response.body })
          },
          onResponseData(_, chunk) {
            received += chunk.length
            response?.push(chunk)
          },
          onResponseEnd() {
            forget()
            response?.end()
          },
          onResponseError(_, error) {
            if (over) return
            if (!response) {
              forget()
              reject(error)
            } else {
              const broken = response
              void hooks.explain(error).then(explained => broken.fail(over ?? explained))
            }
          }
        }
      )
    })
  }

  /** Whether to try again after a failure that came before any answer. Waits where that helps. */
  async function mayRetry(error: Error, attempt: number, signal: AbortSignal): Promise<boolean> {
    if (codeOf(error) === 'EAGAIN') {
      const wait = BACKLOG_WAITS[attempt]
      if (wait === undefined) return false
      await sleep(wait, undefined, { signal }).catch(() => {
        // The next attempt begins with a look at the signal.
      })
      return hooks.alive()
    }
    return attempt === 0 && BROKEN.has(codeOf(error)) && hooks.alive()
  }

  return {
    async request(request) {
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
    cut(error) {
      closed ??= error
      for (const finish of [...open]) finish(error)
      void agent.destroy(error)
    },
    activity: () => ({ open: open.size, received })
  }
}
