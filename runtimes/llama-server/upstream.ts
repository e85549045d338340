import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { EngineAddress } from './launch.ts'
import { type EngineBody, ResponseBody } from './response-body.ts'
import { ResponseReader } from './response-reader.ts'

export interface EngineRequest {
  method: 'GET' | 'POST'
  path: string
  /** JSON. */
  body?: string
  /** Ends the request, or the answer that comes. */
  signal?: AbortSignal | undefined
}

export interface EngineResponse {
  status: number
  body: EngineBody
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

/** Bytes of an answer that are read at once, and how many pieces of memory for that are kept for the next requests. */
const READ_SIZE = 16 * 1024
const MOST_SPARE = 32

/** Whether it is a comment of an event stream, which llama-server sends while it has nothing to say. */
const isSignOfLife = (chunk: Buffer) => chunk.length <= 3 && chunk[0] === 0x3a

function requestText(method: string, path: string, key: string, body: string | undefined): string {
  const head = `${method} ${path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${key}\r\nconnection: close\r\n`
  if (body === undefined) return `${head}\r\n`
  const length = Buffer.byteLength(body)
  return `${head}content-type: application/json\r\ncontent-length: ${length}\r\n\r\n${body}`
}

/**
 * Requests to an engine. A connection serves one request: llama-server closes it after a stream although it promises
 * otherwise. There are no time limits.
 */
export function createUpstream({ listen, key }: EngineAddress, hooks: UpstreamHooks) {
  /** Ends one open request each. */
  const open = new Set<(error: Error) => void>()
  const spare: Buffer[] = []
  let closed: Error | undefined
  let received = 0
  let filing = 0

  function send({ method, path, body, signal }: EngineRequest): Promise<EngineResponse> {
    return new Promise((resolve, reject) => {
      const reader = new ResponseReader()
      const buffer = spare.pop() ?? Buffer.allocUnsafeSlow(READ_SIZE)
      const socket = connect({
        ...('socketPath' in listen ? { path: listen.socketPath } : listen),
        allowHalfOpen: true,
        onread: { buffer, callback: count => onBytes(buffer.subarray(0, count)) }
      })
      const answer = new ResponseBody(socket)
      const isFiling = path.startsWith(SLOT_FILES)
      const forget = () => {
        if (open.delete(finish) && isFiling) filing--
        signal?.removeEventListener('abort', onAbort)
      }
      const finish = (error: Error) => {
        forget()
        answer.fail(error)
        socket.destroy()
        reject(error)
      }
      const onAbort = () => finish(signal!.reason)
      const onBytes = (bytes: Buffer) => {
        const hadHead = reader.status !== undefined
        let chunk: Buffer
        try {
          chunk = reader.push(bytes)
        } catch (error) {
          onBreak(error as Error)
          return false
        }
        if (!hadHead && reader.status !== undefined) {
          received++
          resolve({ status: reader.status, body: answer })
        }
        if (chunk.length > 0) {
          if (!isSignOfLife(chunk)) received += chunk.length
          answer.push(chunk)
        }
        if (reader.complete) onComplete()
        return true
      }
      // Who closes a connection wakes the other side: that is left to llama-server, which does so after each answer.
      const onComplete = () => {
        forget()
        answer.end()
      }
      const onBreak = (error: Error) => {
        socket.destroy()
        if (reader.complete) return
        // Once there is an answer, its reader gets the error.
        if (reader.status !== undefined) void hooks.explain(error).then(finish)
        else finish(error)
      }
      open.add(finish)
      if (isFiling) filing++
      hooks.onRequest?.()
      signal?.addEventListener('abort', onAbort)
      socket.on('error', onBreak)
      socket.on('close', () => {
        if (spare.length < MOST_SPARE) spare.push(buffer)
      })
      socket.on('end', () => {
        socket.destroy()
        if (reader.complete) return
        if (reader.end()) onComplete()
        else onBreak(Object.assign(new Error('the connection was closed'), { code: 'ECONNRESET' }))
      })
      socket.write(requestText(method, path, key, body))
    })
  }

  /** Whether to try again after a failure that came before any answer. Waits where that helps. */
  async function mayRetry(error: Error, attempt: number, signal?: AbortSignal): Promise<boolean> {
    const code = 'code' in error ? String(error.code) : ''
    if (code === 'EAGAIN') {
      const wait = BACKLOG_WAITS[attempt]
      if (wait === undefined) return false
      await sleep(wait, undefined, signal && { signal }).catch(() => {
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
        request.signal?.throwIfAborted()
        if (closed) throw closed
        try {
          return await send(request)
        } catch (error) {
          if (!(error instanceof Error) || error === closed || request.signal?.aborted) throw error
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
