import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { ResponseReader } from '../../core/system/http-response.ts'
import { OpenSet } from '../../core/system/open-tables.ts'
import { type EngineBody, ResponseBody } from '../../core/system/response-body.ts'
import type { Listen } from './arguments.ts'
import type { EngineAddress } from './launch.ts'

export interface EngineRequest {
  method: 'GET' | 'POST'
  path: string
  body?: string
  /** Ends the request or its answer. */
  signal?: AbortSignal | undefined
  /** Whether its connection may be reused. Not possible if the answer is a stream. */
  keep?: boolean
}

export interface EngineResponse {
  status: number
  body: EngineBody
}

export type Upstream = ReturnType<typeof createUpstream>

export interface UpstreamHooks {
  alive(): boolean
  /** Returns the error to report for a broken connection. */
  explain(error: Error): Promise<Error>
  /** Called before each request is sent. */
  onRequest?(): void
}

/** The connection failed before an answer came. If the engine is alive, another connection may work. */
const BROKEN = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ENOTCONN'])
/** Milliseconds before each further attempt if the queue of new connections of a Unix socket is full. */
const BACKLOG_WAITS = [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]

/** Routes that save slots to files and restore them. */
const SLOT_FILES = '/slots/'

/** Bytes of an answer to read in one step, and the number of read buffers to keep for the next connections. */
const READ_SIZE = 16 * 1024
const MAX_SPARE = 32

/** Milliseconds until an idle connection is closed, because llama-server polls each 100 times a second. */
const KEPT_FOR = 1000
/** Threads of llama-server that idle connections may not take. The watch needs them (`engine-watch.ts`). */
const THREADS_FOR_OTHERS = 4

/** Whether it is a comment of an event stream, which llama-server sends while it has nothing else to send. */
const isSignOfLife = (chunk: Buffer) => chunk.length <= 3 && chunk[0] === 0x3a

/** Characters of a body that is converted to bytes once. */
const LONG = 32 * 1024

function writeRequest(socket: Socket, { method, path, body }: EngineRequest, key: string, keep: boolean): void {
  const connection = keep ? '' : 'connection: close\r\n'
  const head = `${method} ${path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${key}\r\n${connection}`
  if (body === undefined) return void socket.write(`${head}\r\n`)
  // Converted once, not for its length and again when written. Short ones are one text, which is cheaper.
  const bytes = body.length > LONG ? Buffer.from(body) : undefined
  const length = bytes?.length ?? Buffer.byteLength(body)
  const start = `${head}content-type: application/json\r\ncontent-length: ${length}\r\n\r\n`
  if (!bytes) return void socket.write(start + body)
  socket.cork()
  socket.write(start)
  socket.write(bytes)
  socket.uncork()
}

/** A request and its answer, which receives the events of their connection. */
interface Exchange {
  /** @returns whether more may be read */
  onBytes(bytes: Buffer): boolean
  onEnd(): void
  onBreak(error: Error): void
}

interface Connection {
  socket: Socket
  /** The current exchange. Undefined while the connection is idle. */
  exchange: Exchange | undefined
  /** Start of its idle time, in milliseconds of `performance.now()`. */
  keptSince: number
}

/**
 * Manages the connections to an engine. An idle connection may be reused, but llama-server has a thread for each
 * connection, even an idle one, and a request without a thread waits for seconds until another connection closes. So:
 *
 * 1. A connection is opened only if none is idle.
 * 2. An idle connection stays open only while all connections together, including those of others, have threads.
 *
 * Then no request ever waits for the thread of an idle connection.
 *
 * @param threads how many threads llama-server certainly has
 */
function createConnections(listen: Listen, threads: number) {
  const most = threads - THREADS_FOR_OTHERS
  const spare: Buffer[] = []
  /** The most recently used connections are at the end. */
  const kept: Connection[] = []
  let count = 0
  let timer: NodeJS.Timeout | undefined

  function open(): Connection {
    const buffer = spare.pop() ?? Buffer.allocUnsafeSlow(READ_SIZE)
    const callback = (size: number) => {
      if (connection.exchange) return connection.exchange.onBytes(buffer.subarray(0, size))
      // Nobody asked for it.
      socket.destroy()
      return false
    }
    const socket = connect({
      ...('socketPath' in listen ? { path: listen.socketPath } : listen),
      allowHalfOpen: true,
      onread: { buffer, callback }
    })
    const connection: Connection = { socket, exchange: undefined, keptSince: 0 }
    count++
    socket.on('error', error => connection.exchange?.onBreak(error))
    socket.on('end', () => {
      socket.destroy()
      connection.exchange?.onEnd()
    })
    socket.on('close', () => {
      count--
      forget(connection)
      if (spare.length < MAX_SPARE) spare.push(buffer)
    })
    return connection
  }

  function forget(connection: Connection): void {
    const at = kept.indexOf(connection)
    if (at !== -1) kept.splice(at, 1)
  }

  function closeIdle(): void {
    const oldest = performance.now() - KEPT_FOR
    while (kept.length > 0 && kept[0]!.keptSince <= oldest) kept.shift()!.socket.destroy()
    timer = kept.length > 0 ? setTimeout(closeIdle, KEPT_FOR).unref() : undefined
  }

  function closeKept(): void {
    clearTimeout(timer)
    timer = undefined
    for (const { socket } of kept.splice(0)) socket.destroy()
  }

  return {
    /** @param fresh whether it must be a new one, because an idle one may have failed */
    take(fresh: boolean): Connection {
      if (fresh) closeKept()
      return kept.pop() ?? open()
    },
    /** Whether a used connection may stay open. */
    mayKeep: () => count <= most,
    /** Keeps a connection open for the next request after its exchange. */
    keep(connection: Connection): void {
      connection.exchange = undefined
      connection.keptSince = performance.now()
      kept.push(connection)
      timer ??= setTimeout(closeIdle, KEPT_FOR).unref()
    },
    closeKept
  }
}

/**
 * Sends requests to an engine, without time limits. The connection of a stream serves nothing else, because
 * llama-server closes it although it promises otherwise.
 * @param threads how many connections it certainly serves in parallel. Without it, none is reused
 */
export function createUpstream({ listen, key }: EngineAddress, hooks: UpstreamHooks, threads = 0) {
  /** Functions that end one open request each. */
  const open = new OpenSet<(error: Error) => void>()
  const connections = createConnections(listen, threads)
  let closed: Error | undefined
  let received = 0
  let filing = 0

  function send(request: EngineRequest, fresh: boolean): Promise<EngineResponse> {
    return new Promise((resolve, reject) => {
      const { path, signal } = request
      let isReusable = true
      const reader = new ResponseReader(({ status, keepAlive }) => {
        isReusable = keepAlive
        received++
        resolve({ status, body: answer })
        return true
      })
      const connection = connections.take(fresh)
      const { socket } = connection
      // Once the connection serves another request, this reader's events are ignored.
      const isOurs = () => connection.exchange === exchange
      const answer = new ResponseBody({
        pause: () => isOurs() && socket.pause(),
        resume: () => isOurs() && socket.resume(),
        destroy: () => isOurs() && socket.destroy()
      })
      const keep = request.keep === true && connections.mayKeep()
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
      // Closing a connection wakes the other side. If llama-server was asked to close it, this is left to llama-server.
      const onComplete = () => {
        forget()
        answer.end()
        if (!keep) return
        if (isReusable && !socket.destroyed && connections.mayKeep()) connections.keep(connection)
        else socket.destroy()
      }
      const exchange: Exchange = {
        onBytes(bytes) {
          const pieces: Buffer[] = []
          try {
            const used = reader.push(bytes, data => pieces.push(data) > 0)
            isReusable &&= used === bytes.length
          } catch (error) {
            exchange.onBreak(error as Error)
            return false
          }
          if (pieces.length > 0) {
            // Pieces that arrive together stay together. Copied, because the socket is read into the same memory.
            const chunk = Buffer.concat(pieces)
            if (!isSignOfLife(chunk)) received += chunk.length
            answer.push(chunk)
          }
          if (reader.complete) onComplete()
          return true
        },
        onEnd() {
          if (reader.complete) return
          if (reader.end()) onComplete()
          else exchange.onBreak(Object.assign(new Error('the connection was closed'), { code: 'ECONNRESET' }))
        },
        onBreak(error) {
          socket.destroy()
          if (reader.complete) return
          // If there is an answer already, its reader gets the error.
          if (reader.head) void hooks.explain(error).then(finish)
          else finish(error)
        }
      }
      connection.exchange = exchange
      open.add(finish)
      if (isFiling) filing++
      hooks.onRequest?.()
      signal?.addEventListener('abort', onAbort)
      writeRequest(socket, request, key, keep)
    })
  }

  /** Whether to retry after a failure before any answer. Waits if that helps. */
  async function mayRetry(error: Error, attempt: number, signal?: AbortSignal): Promise<boolean> {
    const code = 'code' in error ? String(error.code) : ''
    if (code === 'EAGAIN') {
      const wait = BACKLOG_WAITS[attempt]
      if (wait === undefined) return false
      await sleep(wait, undefined, signal && { signal }).catch(() => {
        // The next attempt checks the signal first.
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
          return await send(request, attempt > 0)
        } catch (error) {
          if (!(error instanceof Error) || error === closed || request.signal?.aborted) throw error
          if (!(await mayRetry(error, attempt, request.signal))) throw await hooks.explain(error)
        }
      }
    },
    /** Ends all open requests with this error, and rejects new ones with it. */
    cut(error: Error): void {
      closed ??= error
      for (const finish of open) finish(error)
      connections.closeKept()
    },
    /** Open requests, bytes and answers received without keep-alives, and whether slots are being saved or restored. */
    activity: () => ({ open: open.size, received, filing: filing > 0 })
  }
}
