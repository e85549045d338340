import type { OnReadOpts, Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type ResponseHead, ResponseReader } from './http-response.ts'
import { OpenSet } from './open-tables.ts'
import { type EngineBody, ResponseBody } from './response-body.ts'

/*
 * An HTTP/1.1 client for one server that answers thousands of short requests: an engine, or a node of a cluster. It
 * needs much less processor time than undici, because it does only what these servers need.
 */

export interface HttpRequest {
  method: 'GET' | 'HEAD' | 'POST' | 'DELETE'
  path: string
  /** Further lines of the head, each with its line break (`headerLines`). */
  headers?: string
  body?: string | undefined
  /** Each of them ends the request or its answer. */
  signal?: AbortSignal | readonly AbortSignal[] | undefined
  /** Whether its connection may be reused. */
  keep?: boolean
}

export interface HttpAnswer extends Pick<ResponseHead, 'status' | 'headers'> {
  body: EngineBody
  /** Complete when the body has ended. */
  trailers: Readonly<Record<string, string>>
}

export type HttpClient = ReturnType<typeof createHttpClient>

export interface HttpServer {
  /** Opens a connection that is read by `onread`. */
  connect(onread: OnReadOpts): Socket
  /** Lines of the head of every request, each with its line break. */
  head: string
  /** Connections that may be open while one of them is idle. */
  maxWithIdle: number
  /** Milliseconds until an idle connection is closed. */
  idleMs: number
}

export interface HttpHooks {
  /** Whether to repeat a request that failed before any answer. @param isStale a reused connection was just closed */
  mayRepeat(isStale: boolean): boolean
  /** Returns the error to report for a broken connection. */
  explain(error: Error): Promise<Error>
  /** Called before each request is sent, and when its answer has ended. */
  began?(request: HttpRequest): void
  ended?(request: HttpRequest): void
  /** Called with each piece of a body, and without one at each head. */
  received?(bytes?: Buffer): void
}

/** The connection failed before an answer came. Another connection may work. */
const BROKEN = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ENOTCONN'])
/** Milliseconds before each further attempt if the queue of new connections of a Unix socket is full. */
const BACKLOG_WAITS = [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]

/** Bytes of an answer to read in one step, and the number of read buffers to keep for the next connections. */
const READ_SIZE = 16 * 1024
const MAX_SPARE = 32

/** Characters of a body that is converted to bytes once. */
const LONG = 32 * 1024

/** Formats headers for `HttpRequest.headers`. @throws Error if one contains a line break */
export function headerLines(headers: Readonly<Record<string, string>>): string {
  let lines = ''
  for (const name in headers) {
    const value = headers[name]!
    // A header with a line break would begin another one.
    if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) throw new Error(`the header "${name}" contains invalid characters`)
    lines += `${name}: ${value}\r\n`
  }
  return lines
}

function writeRequest(socket: Socket, { method, path, headers = '', body }: HttpRequest, head: string, keep: boolean) {
  const connection = keep ? '' : 'connection: close\r\n'
  const start = `${method} ${path} HTTP/1.1\r\n${head}${headers}${connection}`
  if (body === undefined) return void socket.write(`${start}\r\n`)
  // Converted once, not for its length and again when written. Short ones are one text, which is cheaper.
  const bytes = body.length > LONG ? Buffer.from(body) : undefined
  const length = bytes?.length ?? Buffer.byteLength(body)
  const whole = `${start}content-type: application/json\r\ncontent-length: ${length}\r\n\r\n`
  if (!bytes) return void socket.write(whole + body)
  socket.cork()
  socket.write(whole)
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
  /** Start of its idle time, in milliseconds of `performance.now()`. 0 for a new connection. */
  keptSince: number
}

/**
 * Manages connections. A connection is opened only if none is idle, and an idle one stays open only while all
 * connections together are at most `maxWithIdle`.
 */
function createConnections({ connect, maxWithIdle, idleMs }: HttpServer) {
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
    const socket = connect({ buffer, callback })
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
    const oldest = performance.now() - idleMs
    while (kept.length > 0 && kept[0]!.keptSince <= oldest) kept.shift()!.socket.destroy()
    timer = kept.length > 0 ? setTimeout(closeIdle, idleMs).unref() : undefined
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
    mayKeep: () => count <= maxWithIdle,
    /** Keeps a connection open for the next request after its exchange. */
    keep(connection: Connection): void {
      connection.exchange = undefined
      connection.keptSince = performance.now()
      kept.push(connection)
      timer ??= setTimeout(closeIdle, idleMs).unref()
    },
    closeKept
  }
}

/** Creates a client without time limits: only signals and broken connections end its requests. */
export function createHttpClient(server: HttpServer, hooks: HttpHooks) {
  /** Functions that end one open request each. */
  const open = new OpenSet<(error: Error) => void>()
  const connections = createConnections(server)
  let closed: Error | undefined

  function send(
    request: HttpRequest,
    signals: readonly AbortSignal[],
    fresh: boolean,
    onStale: () => void
  ): Promise<HttpAnswer> {
    return new Promise((resolve, reject) => {
      let isReusable = true
      let isAnswered = false
      const reader = new ResponseReader(head => {
        isReusable = head.keepAlive
        hooks.received?.()
        resolve({ status: head.status, headers: head.headers, trailers: reader.trailers, body: answer })
        return true
      }, request.method === 'HEAD')
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
      const forget = () => {
        if (open.delete(finish)) hooks.ended?.(request)
        for (const signal of signals) signal.removeEventListener('abort', onAbort)
      }
      const finish = (error: Error) => {
        forget()
        answer.fail(error)
        socket.destroy()
        reject(error)
      }
      const onAbort = ({ target }: Event) => finish((target as AbortSignal).reason)
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
          isAnswered = true
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
            hooks.received?.(chunk)
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
          if (connection.keptSince > 0 && !isAnswered) onStale()
          // If there is an answer already, its reader gets the error.
          if (reader.head) void hooks.explain(error).then(finish)
          else finish(error)
        }
      }
      connection.exchange = exchange
      open.add(finish)
      hooks.began?.(request)
      for (const signal of signals) signal.addEventListener('abort', onAbort)
      writeRequest(socket, request, server.head, keep)
    })
  }

  /** Whether to repeat a request after a failure before any answer. Waits if that helps. */
  async function mayRepeat(error: Error, attempt: number, isStale: boolean, signals: readonly AbortSignal[]) {
    const code = 'code' in error ? String(error.code) : ''
    if (code === 'EAGAIN') {
      const wait = BACKLOG_WAITS[attempt]
      if (wait === undefined) return false
      const [signal] = signals
      await sleep(wait, undefined, signal && { signal }).catch(() => {
        // The next attempt checks the signals first.
      })
      return hooks.mayRepeat(isStale)
    }
    return attempt === 0 && BROKEN.has(code) && hooks.mayRepeat(isStale)
  }

  return {
    /** Resolves at the response's headers. @throws the reason of the first aborted signal, or what `explain` returns */
    async request(request: HttpRequest): Promise<HttpAnswer> {
      const signals = [request.signal ?? []].flat()
      for (let attempt = 0; ; attempt++) {
        for (const signal of signals) signal.throwIfAborted()
        if (closed) throw closed
        let isStale = false
        try {
          return await send(request, signals, attempt > 0, () => {
            isStale = true
          })
        } catch (error) {
          const isAborted = signals.some(({ aborted }) => aborted)
          if (!(error instanceof Error) || error === closed || isAborted) throw error
          if (!(await mayRepeat(error, attempt, isStale, signals))) throw await hooks.explain(error)
        }
      }
    },
    /** Ends all open requests with this error, and rejects new ones with it. */
    cut(error: Error): void {
      closed ??= error
      for (const finish of open) finish(error)
      connections.closeKept()
    },
    /** The number of requests whose answers have not ended. */
    get open(): number {
      return open.size
    }
  }
}
