import type { Socket } from 'node:net'
import { requireAllowedHost } from '../../../../core/system/allowed-address.ts'
import { InvalidResponse, type ResponseHead, ResponseReader } from '../../../../core/system/http-response.ts'
import { printable } from '../../../../core/system/printable.ts'
import { isRedirect } from '../../../../core/system/redirects.ts'
import { isWebPage, pageTitle } from '../../../../core/system/web-page.ts'
import { basicCredentials, ConnectionFailure, openSocket, proxyFor, type SocketTarget } from './http-socket.ts'

/** @returns `size`: undefined if the server does not know it */
function parseContentRange(value: string | undefined) {
  const parts = /^bytes\s+(\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/i.exec(value?.trim() ?? '')
  if (!parts) return undefined
  const [first, last] = [Number(parts[1]), Number(parts[2])]
  const size = parts[3] === '*' ? undefined : Number(parts[3])
  return last < first || last >= (size ?? Number.POSITIVE_INFINITY) ? undefined : { first, last, size }
}

export type Answer =
  /** The bytes from `start` up to `end` (exclusive) follow. */
  | { kind: 'range'; end: number; size: number | undefined }
  /** The whole file follows: the server does not support ranges. */
  | { kind: 'whole'; size: number | undefined }
  /** The whole file would follow although only a later part was requested. */
  | { kind: 'rangeless' }
  | { kind: 'redirect'; to: string | undefined }
  | { kind: 'empty' }
  | { kind: 'size'; size: number }
  /** Not allowed, or deleted. Another location may help. */
  | { kind: 'refused' }
  | { kind: 'busy' }
  /** Anything else. Another attempt may help unless `isLasting`. */
  | { kind: 'unusable'; why: string; isLasting?: boolean }

/** @param end end of the requested range (exclusive); undefined for an open range */
export function readResponse(
  { status, headers, body }: ResponseHead,
  start: number,
  end: number | undefined,
  size: number | undefined
): Answer {
  if (isRedirect(status)) return { kind: 'redirect', to: headers.location }
  if (status === 429 || status === 503) return { kind: 'busy' }
  if ([400, 401, 403, 404, 410, 451].includes(status)) return { kind: 'refused' }
  if (status === 416) {
    const total = /^bytes\s+\*\/(\d{1,15})$/i.exec(headers['content-range'] ?? '')?.[1]
    if (total === '0' && size === undefined) return { kind: 'empty' }
    if (total !== undefined && Number(total) !== size) return { kind: 'size', size: Number(total) }
  }
  if (status !== 200 && status !== 206) return { kind: 'unusable', why: `answers ${status}` }

  const encoding = headers['content-encoding']?.toLowerCase() ?? 'identity'
  if (encoding !== 'identity') {
    const why = `sends it compressed (${printable(encoding, 20)}), although the plain bytes were requested`
    return { kind: 'unusable', why, isLasting: true }
  }
  const length = body.kind === 'length' ? body.length : undefined
  // A file may also have this type, if it has the right size.
  const isPage = /\btext\/html\b/i.test(headers['content-type'] ?? '') && status === 200
  if (isPage && length !== size) return { kind: 'unusable', why: WEB_PAGE, isLasting: true }
  const range = parseContentRange(headers['content-range'])
  const total = range && range.last - range.first + 1
  // Some servers answer a range with 200. Accept it only if all its headers agree.
  if (range && (status === 206 || length === total)) {
    if ((range.size ?? size) === undefined) return { kind: 'unusable', why: SIZELESS }
    if (range.size !== undefined && size !== undefined && range.size !== size) return { kind: 'size', size: range.size }
    const fits = range.first === start && (end === undefined || range.last < end) && (length ?? total) === total
    if (!fits) return { kind: 'unusable', why: 'sends another part than the requested one' }
    return { kind: 'range', end: range.last + 1, size: range.size }
  }
  if (status === 206) return { kind: 'unusable', why: 'sends a part without saying which' }
  if ((length ?? size) === undefined) return { kind: 'unusable', why: SIZELESS }
  if (length !== undefined && size !== undefined && length !== size) return { kind: 'size', size: length }
  return start === 0 ? { kind: 'whole', size: length } : { kind: 'rangeless' }
}

export const WEB_PAGE = 'sends a web page instead of the file'
const SIZELESS = 'does not say how large the file is'

/** Receives a response. The bytes are read directly into its memory, without copies or garbage. */
interface Receiver {
  /** @param wait milliseconds since the request @returns false if the body is not wanted */
  onHead(head: ResponseHead, wait: number): boolean
  /** Returns the buffer for the next bytes of the body. Never empty, and unchanged until `onBytes` is called. */
  room(): Buffer
  /** Called when bytes were read into the room. @returns false if the receiver needs no more */
  onBytes(length: number): boolean
}

interface Exchange {
  /** With the query. The whole address for a proxy. */
  path: string
  headers: Record<string, string>
  signal: AbortSignal
  /** The exchange fails after this many milliseconds without a byte. */
  stallTimeout: number
  receiver: Receiver
  /** Returns the milliseconds to pause after these bytes, to respect a bandwidth limit. */
  pace?(bytes: number): number
}

interface Running extends Exchange {
  reader: ResponseReader
  resolve(end: 'complete' | 'stopped'): void
  reject(error: unknown): void
}

const HEAD_READ_BYTES = 16 * 1024

/**
 * One connection, for one exchange after another. Downloads have their own HTTP/1.1 client because Node can read a
 * socket directly into given memory, and client libraries do not use that: over TLS undici needs more than twice the
 * processor time for the same bytes (docs/measurements/downloads.md).
 */
class Connection {
  #socket!: Socket
  /** For bytes that are not read directly into a receiver's memory. */
  readonly #scratch = Buffer.allocUnsafeSlow(HEAD_READ_BYTES)
  #running: Running | undefined
  #sentAt = 0
  #lastByte = 0
  #pausedUntil = 0
  #timers: NodeJS.Timeout[] = []
  idleTimer: NodeJS.Timeout | undefined
  answered = false
  closed = false

  private constructor() {}

  /** @throws ConnectionFailure, CorralError `address_not_allowed`, the signal's reason */
  static async open(target: SocketTarget, proxy: URL | undefined, timeout: number, signal: AbortSignal) {
    const connection = new Connection()
    const onread = {
      buffer: () => connection.#room(),
      callback: (length: number, from: Uint8Array) => {
        connection.#onRead(length, from)
        return true
      }
    }
    const { socket, direct } = await openSocket(target, proxy, onread, timeout, signal)
    connection.#socket = socket
    socket.on('error', error => connection.#fail(new ConnectionFailure('cut', error.message, error)))
    socket.on('end', () => connection.#onEnd())
    socket.on('close', () => connection.#onEnd())
    if (!direct) socket.on('data', (bytes: Buffer) => connection.#onBytes(bytes))
    return connection
  }

  /**
   * Sends one GET. Resolves with `complete` at the end of the body, or with `stopped` if the receiver needs no more,
   * which closes the connection unless the body was complete.
   * @throws ConnectionFailure, the signal's reason
   */
  exchange(exchange: Exchange): Promise<'complete' | 'stopped'> {
    this.answered = false
    const { signal } = exchange
    const abort = () => this.#fail(signal.reason)
    return new Promise<'complete' | 'stopped'>((resolve, reject) => {
      const reader = new ResponseReader(head => exchange.receiver.onHead(head, this.#lastByte - this.#sentAt))
      this.#running = { ...exchange, reader, resolve, reject }
      if (signal.aborted) return abort()
      if (this.closed) return this.#fail(new ConnectionFailure('cut', 'the connection was closed'))
      signal.addEventListener('abort', abort, { once: true })
      this.#sentAt = this.#lastByte = performance.now()
      const check = () => {
        const left = exchange.stallTimeout - this.silence
        if (left > 0) return void this.#timers.splice(0, 1, setTimeout(check, left))
        // This thread may have been busy, so read what is waiting in the socket before reporting a stall.
        setImmediate(() =>
          setImmediate(() => {
            if (this.silence < exchange.stallTimeout) check()
            else this.#fail(new ConnectionFailure('stall', `no data for ${exchange.stallTimeout / 1000} s`))
          })
        )
      }
      this.#timers.unshift(setTimeout(check, exchange.stallTimeout))
      const lines = Object.entries(exchange.headers).map(([name, value]) => `${name}: ${value}\r\n`)
      this.#socket.write(`GET ${exchange.path} HTTP/1.1\r\n${lines.join('')}\r\n`, 'latin1')
    }).finally(() => {
      signal.removeEventListener('abort', abort)
      for (const timer of this.#timers.splice(0)) clearTimeout(timer)
    })
  }

  close(): void {
    this.closed = true
    this.#socket.destroy()
  }

  /** Milliseconds since the last byte, without our own pauses. */
  get silence(): number {
    return Math.max(0, performance.now() - Math.max(this.#lastByte, this.#pausedUntil))
  }

  #room(): Buffer {
    const running = this.#running
    if (!running?.reader.isPlain) return this.#scratch
    const room = running.receiver.room()
    const { left } = running.reader
    return left >= room.length ? room : room.subarray(0, left)
  }

  #onRead(length: number, from: Uint8Array): void {
    if (from.buffer === this.#scratch.buffer) this.#onBytes(this.#scratch.subarray(0, length))
    else if (this.#running) {
      this.#guarded(running => {
        running.reader.skip(length)
        if (!this.#onBody(running, length) || running.reader.complete) this.#done(running, true)
      })
    }
  }

  /** Handles bytes that are not in the receiver's memory. */
  #onBytes(bytes: Buffer): void {
    if (!this.#running) {
      this.close()
      return
    }
    this.#guarded(running => {
      this.answered = true
      this.#lastByte = performance.now()
      const { reader } = running
      const used = reader.push(bytes, data => this.#copy(running, data))
      if (!reader.isWanted || reader.complete) this.#done(running, used === bytes.length)
    })
  }

  #copy(running: Running, bytes: Buffer): boolean {
    let goesOn = true
    for (let at = 0; at < bytes.length && goesOn; ) {
      const length = bytes.copy(running.receiver.room(), 0, at)
      at += length
      goesOn = this.#onBody(running, length) && this.#running === running
    }
    return goesOn
  }

  /** @returns false if the receiver needs no more */
  #onBody({ receiver, reader, pace }: Running, length: number): boolean {
    this.#lastByte = performance.now()
    const goesOn = receiver.onBytes(length)
    const delay = goesOn && !reader.complete ? (pace?.(length) ?? 0) : 0
    if (delay > 0) {
      this.#pausedUntil = performance.now() + delay
      this.#socket.pause()
      this.#timers.push(setTimeout(() => this.#socket.resume(), delay))
    }
    return goesOn
  }

  /** @param isClean false if there were bytes after the response, which could be mistaken for the next one */
  #done(running: Running, isClean: boolean): void {
    const { head, complete } = running.reader
    this.#running = undefined
    if (!complete || !isClean || !head!.keepAlive) this.close()
    else this.#socket.resume()
    running.resolve(complete ? 'complete' : 'stopped')
  }

  #guarded(action: (running: Running) => void): void {
    try {
      action(this.#running!)
    } catch (error) {
      // Errors of a receiver, for example a full disk, end the transfer.
      this.#fail(error instanceof InvalidResponse ? new ConnectionFailure('protocol', error.message, error) : error)
    }
  }

  #onEnd(): void {
    this.closed = true
    const running = this.#running
    if (running?.reader.end()) this.#done(running, true)
    else this.#fail(new ConnectionFailure('cut', 'the connection was closed before the end'))
  }

  #fail(error: unknown): void {
    const running = this.#running
    this.#running = undefined
    this.close()
    running?.reject(error)
  }
}

const MAX_SHOWN_CHARACTERS = 300

export type Sink = Omit<Receiver, 'onHead'>

interface FetchRequest extends Omit<GetOptions, 'receiver'> {
  /** First byte, and the end (exclusive); undefined means the end of the file. */
  start: number
  end: number | undefined
  size: number | undefined
  /** @param wait milliseconds until the answer arrived @returns the sink for the body; undefined if it is not wanted */
  onAnswer(answer: Answer, tag: string | undefined, wait: number): Sink | undefined
}

export interface FetchResult {
  answer: Answer
  head: ResponseHead
  /** The beginning of an error response's body. Empty for a server that a client chose. */
  text: string
  isPage: boolean
}

/** Requests bytes of a file and passes them to a sink. @throws ConnectionFailure, errors of the sink */
export async function fetchBytes(
  connections: ConnectionPool,
  target: RequestTarget,
  { start, end, size, onAnswer, ...options }: FetchRequest
): Promise<FetchResult> {
  const range = `bytes=${start}-${end === undefined ? '' : end - 1}`
  let result: Pick<FetchResult, 'answer' | 'head'> | undefined
  let sink: Sink | undefined
  const errorBody = Buffer.alloc(MAX_SHOWN_CHARACTERS * 8)
  let errorBytes = 0
  const receiver: Receiver = {
    onHead(head, wait) {
      const answer = readResponse(head, start, end, size)
      result = { answer, head }
      // A strong ETag identifies exactly these bytes.
      const { etag } = head.headers
      sink = onAnswer(answer, etag && !etag.startsWith('W/') ? etag : undefined, wait)
      const isFailure = ['refused', 'busy', 'unusable'].includes(answer.kind) && head.status >= 400
      return sink !== undefined || isFailure || isPage(answer)
    },
    room: () => sink?.room() ?? errorBody.subarray(errorBytes),
    onBytes(length) {
      if (sink) return sink.onBytes(length)
      errorBytes += length
      return errorBytes < errorBody.length
    }
  }
  const headers = { ...target.headers, Range: range, 'Accept-Encoding': 'identity' }
  await connections.get({ ...target, headers }, { ...options, receiver })
  const body = errorBody.toString('utf8', 0, errorBytes)
  const page = isPage(result!.answer) || isWebPage(body)
  if (target.privateAddresses) return { ...result!, isPage: page, text: '' }
  const text = page ? `a web page${pageTitle(body)}` : withoutQueries(body.replace(/\s+/g, ' ').trim())
  return { ...result!, isPage: page, text: printable(text, MAX_SHOWN_CHARACTERS) }
}

const isPage = (answer: Answer) => answer.kind === 'unusable' && answer.why === WEB_PAGE

/** Removes the queries of addresses in a text, since they may contain signatures. */
const withoutQueries = (text: string): string => text.replace(/(https?:\/\/[^\s?"'<>#]+)\?[^\s"'<>]*/gi, '$1')

/** Shorter than servers usually keep unused connections. */
const IDLE_MS = 4000

interface RequestTarget extends SocketTarget {
  headers: Record<string, string>
  proxy: string | undefined
}

type GetOptions = Omit<Exchange, 'path' | 'headers'>

export class ConnectionPool {
  /** With keys that identify their servers and proxies, and the addresses that they were allowed to contact. */
  readonly #idle = new Map<Connection, string>()

  /** Sends one GET over an idle connection or a new one. @throws as `Connection.open` */
  async get(target: RequestTarget, options: GetOptions): Promise<'complete' | 'stopped'> {
    const proxy = proxyFor(target.url, target.proxy, process.env)
    const throughProxy = proxy !== undefined && target.url.protocol === 'http:'
    const { privateAddresses: allowed } = target
    if (allowed) requireAllowedHost(target.url.hostname, allowed, proxy === undefined)
    const key = JSON.stringify([proxy?.href, throughProxy ? '' : target.url.origin, allowed, target.tls])
    const exchange: Exchange = {
      ...options,
      path: `${throughProxy ? target.url.origin : ''}${target.url.pathname}${target.url.search}`,
      headers: headersFor(target, throughProxy && proxy.username !== '' ? basicCredentials(proxy) : undefined)
    }
    for (;;) {
      const idle = this.#take(key)
      const connection = idle ?? (await Connection.open(target, proxy, options.stallTimeout, options.signal))
      try {
        const end = await connection.exchange(exchange)
        if (!connection.closed) this.#keep(key, connection)
        return end
      } catch (error) {
        // A server may close an idle connection just as it is reused. That is not a failure of the request.
        if (!idle || connection.answered || options.signal.aborted) throw error
      }
    }
  }

  close(): void {
    for (const connection of this.#idle.keys()) this.#remove(connection).close()
  }

  #take(wanted: string): Connection | undefined {
    for (const [connection, key] of this.#idle) {
      if (key === wanted && !this.#remove(connection).closed) return connection
    }
    return undefined
  }

  #keep(key: string, connection: Connection): void {
    connection.idleTimer = setTimeout(() => this.#remove(connection).close(), IDLE_MS).unref()
    this.#idle.set(connection, key)
  }

  #remove(connection: Connection): Connection {
    clearTimeout(connection.idleTimer)
    this.#idle.delete(connection)
    return connection
  }
}

function headersFor({ url, headers }: RequestTarget, proxyCredentials: string | undefined): Record<string, string> {
  // `Headers` refuses names and values that would break the request.
  const all = new Headers({ host: url.host, 'user-agent': 'corral', accept: '*/*' })
  if (url.username !== '') all.set('authorization', basicCredentials(url))
  if (proxyCredentials !== undefined) all.set('proxy-authorization', proxyCredentials)
  for (const [name, value] of Object.entries(headers)) all.set(name, value)
  return Object.fromEntries(all)
}
