import type { Socket } from 'node:net'
import { requireAllowedHost } from '../../../../core/system/allowed-address.ts'
import { printable } from '../../../../core/system/printable.ts'
import { isRedirect } from '../../../../core/system/redirects.ts'
import { isWebPage, pageTitle } from '../../../../core/system/web-page.ts'
import { basicCredentials, ConnectionFailure, openSocket, proxyFor, type SocketTarget } from './http-socket.ts'

export interface ResponseHead {
  status: number
  /** By name in lower case. Repeated headers are joined by commas. */
  headers: Record<string, string | undefined>
  keepAlive: boolean
  body: { kind: 'length'; length: number } | { kind: 'chunked' } | { kind: 'until-close' }
}

export class InvalidResponse extends Error {
  override readonly name = 'InvalidResponse'
}

export const MAX_HEAD_BYTES = 64 * 1024

/** Parses the head of a response. @throws InvalidResponse if it is not HTTP/1.x, or has contradictory lengths */
export function parseHead(text: string): ResponseHead {
  const lines = text.split('\r\n')
  const first = /^HTTP\/1\.([01]) (\d{3})(?: |$)/.exec(lines[0]!)
  if (!first) throw new InvalidResponse('the response is not HTTP/1.1')
  const status = Number(first[2])
  const headers = new Map<string, string>()
  for (const line of lines.slice(1)) {
    const parts = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*$/.exec(line)
    if (!parts) throw new InvalidResponse('the response has an invalid header line')
    const name = parts[1]!.toLowerCase()
    const before = headers.get(name)
    headers.set(name, before === undefined ? parts[2]! : `${before}, ${parts[2]!}`)
  }
  const connection = (headers.get('connection') ?? '').toLowerCase()
  const canStay = first[1] === '1' ? !/\bclose\b/.test(connection) : /\bkeep-alive\b/.test(connection)
  const body = bodyFraming(status, headers)
  return { status, headers: Object.fromEntries(headers), keepAlive: canStay && body.kind !== 'until-close', body }
}

function bodyFraming(status: number, headers: ReadonlyMap<string, string>): ResponseHead['body'] {
  if (status < 200 || status === 204 || status === 304) return { kind: 'length', length: 0 }
  const encoding = headers.get('transfer-encoding')
  const length = headers.get('content-length')
  if (encoding !== undefined) {
    if (length !== undefined) throw new InvalidResponse('the response declares its length twice')
    if (encoding.toLowerCase() === 'chunked') return { kind: 'chunked' }
    throw new InvalidResponse(`the response uses the transfer encoding "${encoding}"`)
  }
  if (length === undefined) return { kind: 'until-close' }
  const [only, ...others] = new Set(length.split(/\s*,\s*/))
  if (others.length > 0 || !/^\d{1,15}$/.test(only!)) throw new InvalidResponse('the response has an invalid length')
  return { kind: 'length', length: Number(only) }
}

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
  phase: 'head' | 'body'
  head: string
  left: number | undefined
  chunked: ChunkedBody | undefined
  keepAlive: boolean
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
  exchanges = 0
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
    this.exchanges += 1
    this.answered = false
    const { signal } = exchange
    const abort = () => this.#fail(signal.reason)
    return new Promise<'complete' | 'stopped'>((resolve, reject) => {
      const atHead = { phase: 'head', head: '', left: undefined, chunked: undefined, keepAlive: false } as const
      this.#running = { ...exchange, ...atHead, resolve, reject }
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
    if (running?.phase !== 'body' || running.chunked) return this.#scratch
    const room = running.receiver.room()
    return running.left === undefined || running.left >= room.length ? room : room.subarray(0, running.left)
  }

  #onRead(length: number, from: Uint8Array): void {
    if (from.buffer === this.#scratch.buffer) this.#onBytes(this.#scratch.subarray(0, length))
    else if (this.#running) this.#guarded(running => this.#onBody(running, length))
  }

  /** Handles bytes that are not in the receiver's memory. */
  #onBytes(bytes: Buffer): void {
    if (!this.#running) {
      this.close()
      return
    }
    this.#guarded(running => {
      if (running.phase === 'body') return this.#copyBody(running, bytes)
      const before = running.head.length
      running.head += bytes.toString('latin1')
      this.answered = true
      this.#lastByte = performance.now()
      const end = running.head.indexOf('\r\n\r\n', Math.max(0, before - 3))
      if (end === -1) {
        if (running.head.length > MAX_HEAD_BYTES) throw new InvalidResponse('the response headers do not end')
        return
      }
      const rest = bytes.subarray(end + 4 - before)
      this.#onHead(running, parseHead(running.head.slice(0, end)), rest)
    })
  }

  #onHead(running: Running, head: ResponseHead, rest: Buffer): void {
    if (head.status < 200) {
      running.head = ''
      if (head.status === 101) throw new InvalidResponse('the server switches to another protocol')
      if (rest.length > 0) this.#onBytes(Buffer.from(rest))
      return
    }
    running.phase = 'body'
    running.keepAlive = head.keepAlive
    running.left = head.body.kind === 'length' ? head.body.length : undefined
    running.chunked = head.body.kind === 'chunked' ? new ChunkedBody() : undefined
    const isWanted = running.receiver.onHead(head, this.#lastByte - this.#sentAt)
    if (!isWanted || running.left === 0) this.#done(running, running.left === 0 && rest.length === 0)
    else if (rest.length > 0) this.#copyBody(running, rest)
  }

  #copyBody(running: Running, bytes: Buffer): void {
    if (!running.chunked) {
      const used = this.#copy(running, running.left === undefined ? bytes : bytes.subarray(0, running.left))
      // Excess bytes could be mistaken for the next response.
      if (used < bytes.length) this.close()
      return
    }
    const { chunked } = running
    const used = chunked.push(bytes, data => {
      this.#copy(running, data)
      return this.#running === running
    })
    if (this.#running === running && chunked.ended) this.#done(running, used === bytes.length)
  }

  #copy(running: Running, bytes: Buffer): number {
    let at = 0
    while (at < bytes.length && this.#running === running) {
      const room = running.receiver.room()
      const length = Math.min(room.length, bytes.length - at)
      bytes.copy(room, 0, at, at + length)
      at += length
      this.#onBody(running, length)
    }
    return at
  }

  #onBody(running: Running, length: number): void {
    this.#lastByte = performance.now()
    if (running.left !== undefined) running.left -= length
    const goesOn = running.receiver.onBytes(length)
    if (running.left === 0 || !goesOn) {
      this.#done(running, running.left === 0)
      return
    }
    const delay = running.pace?.(length) ?? 0
    if (delay <= 0) return
    this.#pausedUntil = performance.now() + delay
    this.#socket.pause()
    this.#timers.push(setTimeout(() => this.#socket.resume(), delay))
  }

  #done(running: Running, complete: boolean): void {
    this.#running = undefined
    if (!complete || !running.keepAlive) this.close()
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
    if (running?.phase === 'body' && running.left === undefined && !running.chunked) this.#done(running, true)
    else this.#fail(new ConnectionFailure('cut', 'the connection was closed before the end'))
  }

  #fail(error: unknown): void {
    const running = this.#running
    this.#running = undefined
    this.close()
    running?.reject(error)
  }
}

const MAX_LINE_BYTES = 16 * 1024

class ChunkedBody {
  #state: 'size' | 'data' | 'data-end' | 'trailer' | 'end' = 'size'
  #left = 0
  #line = ''
  #trailer = 0

  get ended(): boolean {
    return this.#state === 'end'
  }

  /**
   * Passes the data in `bytes` to `onData`, until that returns false.
   * @returns how many bytes were used: fewer than given at the end of the body, or if `onData` stopped it
   * @throws InvalidResponse if the framing is broken
   */
  push(bytes: Buffer, onData: (data: Buffer) => boolean): number {
    let at = 0
    while (at < bytes.length && this.#state !== 'end') {
      if (this.#state === 'data') {
        const data = bytes.subarray(at, at + this.#left)
        at += data.length
        this.#left -= data.length
        if (this.#left === 0) this.#state = 'data-end'
        if (!onData(data)) return at
        continue
      }
      const newline = bytes.indexOf(10, at)
      const end = newline === -1 ? bytes.length : newline + 1
      this.#line += bytes.toString('latin1', at, end)
      at = end
      if (this.#line.length > MAX_LINE_BYTES) throw new InvalidResponse('a chunk line of the response does not end')
      if (newline === -1) break
      const line = this.#line.replace(/\r?\n$/, '')
      this.#line = ''
      if (this.#state === 'size') {
        const size = /^([0-9a-f]{1,12})[ \t]*(?:;.*)?$/i.exec(line)
        if (!size) throw new InvalidResponse('a chunk of the response has no size')
        this.#left = Number.parseInt(size[1]!, 16)
        this.#state = this.#left === 0 ? 'trailer' : 'data'
      } else if (this.#state === 'data-end') {
        if (line !== '') throw new InvalidResponse('a chunk of the response is longer than its size')
        this.#state = 'size'
      } else if (line === '') {
        this.#state = 'end'
      } else {
        this.#trailer += line.length
        if (this.#trailer > MAX_LINE_BYTES) throw new InvalidResponse('the trailing headers of the response do not end')
      }
    }
    return at
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
      const connection = this.#take(key) ?? (await Connection.open(target, proxy, options.stallTimeout, options.signal))
      const used = connection.exchanges > 0
      try {
        const end = await connection.exchange(exchange)
        if (!connection.closed) this.#keep(key, connection)
        return end
      } catch (error) {
        // A server may close an idle connection just as it is reused. That is not a failure of the request.
        if (!used || connection.answered || options.signal.aborted) throw error
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
