import type { Socket } from 'node:net'
import { BadAnswer, HEAD_LIMIT, parseHead, type ResponseHead } from './http-response.ts'
import { ConnectionFailure, openSocket } from './http-socket.ts'

/** Takes a response as it comes. The bytes are read straight into its memory: no copies, no garbage. */
export interface Receiver {
  /** False when the body is not wanted. */
  onHead(head: ResponseHead): boolean
  /** Where the next bytes of the body go; never empty, and the same until `onBytes` is told of some. */
  room(): Buffer
  /** So many bytes are in the room now. False when it was enough. */
  onBytes(length: number): boolean
}

export interface Exchange {
  /** With the query, or a whole address when a proxy takes it. */
  path: string
  headers: Record<string, string>
  signal: AbortSignal
  /** Milliseconds without a byte after which it fails. */
  stallTimeout: number
  receiver: Receiver
  /** Milliseconds to wait after so many bytes, so that a limit is kept. */
  pace?(bytes: number): number
}

interface Running extends Exchange {
  phase: 'head' | 'body'
  head: string
  /** Of the body; undefined where only its end tells. */
  left: number | undefined
  chunked: ChunkedBody | undefined
  keepAlive: boolean
  resolve(end: 'whole' | 'stopped'): void
  reject(error: unknown): void
}

/** Bytes that are read at once while a head is expected. */
const HEAD_READ = 16 * 1024

/**
 * One connection, for one exchange after another. Downloads have an HTTP/1.1 client of their own because Node lets a
 * socket read straight into given memory, which client libraries make no use of: over TLS undici needs more than twice
 * the processor time for the same bytes (docs/benchmark-download.md).
 */
export class Connection {
  #socket!: Socket
  /** Memory for what is not read straight into a receiver's. */
  readonly #scratch: Buffer
  #running: Running | undefined
  #lastByte = 0
  #heldUntil = 0
  #timers: NodeJS.Timeout[] = []
  /** Exchanges that it has carried. */
  exchanges = 0
  /** Something of the answer to the newest exchange has come. */
  answered = false
  closed = false

  private constructor() {
    this.#scratch = Buffer.allocUnsafeSlow(HEAD_READ)
  }

  /**
   * Connects to where `target` is served.
   * @throws ConnectionFailure, the signal's reason
   */
  static async open(target: URL, proxy: URL | undefined, timeout: number, signal: AbortSignal): Promise<Connection> {
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
   * Sends one GET; settles when the body is whole, or `stopped` when the receiver had enough (which costs the
   * connection unless the body was whole by then).
   * @throws ConnectionFailure, the signal's reason
   */
  exchange(exchange: Exchange): Promise<'whole' | 'stopped'> {
    this.exchanges += 1
    this.answered = false
    const { signal } = exchange
    const abort = () => this.#fail(signal.reason)
    const settled = new Promise<'whole' | 'stopped'>((resolve, reject) => {
      this.#running = {
        ...exchange,
        phase: 'head',
        head: '',
        left: undefined,
        chunked: undefined,
        keepAlive: false,
        resolve,
        reject
      }
      if (signal.aborted) return abort()
      if (this.closed) return this.#fail(new ConnectionFailure('cut', 'the connection was closed'))
      signal.addEventListener('abort', abort, { once: true })
      this.#lastByte = performance.now()
      this.#watch(exchange.stallTimeout)
      const lines = Object.entries(exchange.headers).map(([name, value]) => `${name}: ${value}\r\n`)
      this.#socket.write(`GET ${exchange.path} HTTP/1.1\r\n${lines.join('')}\r\n`, 'latin1')
    })
    return settled.finally(() => {
      signal.removeEventListener('abort', abort)
      for (const timer of this.#timers.splice(0)) clearTimeout(timer)
    })
  }

  close(): void {
    this.closed = true
    this.#socket.destroy()
  }

  /** Milliseconds since the last byte came, not counting time in which none was let in. */
  get silence(): number {
    return Math.max(0, performance.now() - Math.max(this.#lastByte, this.#heldUntil))
  }

  #watch(stallTimeout: number): void {
    const check = () => {
      const left = stallTimeout - this.silence
      if (left > 0) return void this.#timers.splice(0, 1, setTimeout(check, left))
      // This thread may have been busy: what waits in the socket is read before it is called a stall.
      setImmediate(() =>
        setImmediate(() => {
          if (this.silence < stallTimeout) check()
          else this.#fail(new ConnectionFailure('stall', `no byte came for ${stallTimeout / 1000} s`))
        })
      )
    }
    this.#timers.unshift(setTimeout(check, stallTimeout))
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

  /** Bytes that lie somewhere else than where they belong. */
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
        if (running.head.length > HEAD_LIMIT) throw new BadAnswer('the answer has headers without end')
        return
      }
      const rest = bytes.subarray(end + 4 - before)
      this.#onHead(running, parseHead(running.head.slice(0, end)), rest)
    })
  }

  #onHead(running: Running, head: ResponseHead, rest: Buffer): void {
    if (head.status < 200) {
      running.head = ''
      if (head.status === 101) throw new BadAnswer('the server wants to speak something else')
      if (rest.length > 0) this.#onBytes(Buffer.from(rest))
      return
    }
    running.phase = 'body'
    running.keepAlive = head.keepAlive
    running.left = head.body.kind === 'length' ? head.body.length : undefined
    running.chunked = head.body.kind === 'chunked' ? new ChunkedBody() : undefined
    if (!running.receiver.onHead(head)) {
      this.#done(running, running.left === 0 && rest.length === 0)
      return
    }
    if (running.left === 0) {
      this.#done(running, rest.length === 0)
      return
    }
    if (rest.length > 0) this.#copyBody(running, rest)
  }

  #copyBody(running: Running, bytes: Buffer): void {
    if (!running.chunked) {
      const used = this.#copy(running, running.left === undefined ? bytes : bytes.subarray(0, running.left))
      // What is more than was told could be taken for the next answer.
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
    if (running.left === 0) {
      this.#done(running, true)
      return
    }
    if (!goesOn) {
      this.#done(running, false)
      return
    }
    const delay = running.pace?.(length) ?? 0
    if (delay > 0) this.#hold(delay)
  }

  #hold(delay: number): void {
    this.#heldUntil = performance.now() + delay
    this.#socket.pause()
    this.#timers.push(setTimeout(() => this.#socket.resume(), delay))
  }

  #done(running: Running, whole: boolean): void {
    this.#running = undefined
    if (!whole || !running.keepAlive) this.close()
    else this.#socket.resume()
    running.resolve(whole ? 'whole' : 'stopped')
  }

  #guarded(action: (running: Running) => void): void {
    try {
      action(this.#running!)
    } catch (error) {
      // Receivers throw what ends the transfer, such as a full disk.
      this.#fail(error instanceof BadAnswer ? new ConnectionFailure('protocol', error.message, error) : error)
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

/** Longest line with a chunk's size, and most bytes of trailing headers. */
const LINE_LIMIT = 16 * 1024

/** Takes the framing off a body that comes in chunks. */
export class ChunkedBody {
  #state: 'size' | 'data' | 'data-end' | 'trailer' | 'end' = 'size'
  #left = 0
  #line = ''
  #trailer = 0

  get ended(): boolean {
    return this.#state === 'end'
  }

  /**
   * Gives the data in `bytes` piece by piece, until `onData` says false.
   * @returns how many bytes were used; fewer than given after the end of the body or when `onData` stopped it
   * @throws BadAnswer when the framing is broken
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
      if (this.#line.length > LINE_LIMIT) throw new BadAnswer('the answer has a chunk line that does not end')
      if (newline === -1) break
      const line = this.#line.replace(/\r?\n$/, '')
      this.#line = ''
      this.#onLine(line)
    }
    return at
  }

  #onLine(line: string): void {
    if (this.#state === 'size') {
      const size = /^([0-9a-f]{1,12})[ \t]*(?:;.*)?$/i.exec(line)
      if (!size) throw new BadAnswer('the answer has a chunk without a size')
      this.#left = Number.parseInt(size[1]!, 16)
      this.#state = this.#left === 0 ? 'trailer' : 'data'
    } else if (this.#state === 'data-end') {
      if (line !== '') throw new BadAnswer('the answer has a chunk longer than it says')
      this.#state = 'size'
    } else if (line === '') {
      this.#state = 'end'
    } else {
      this.#trailer += line.length
      if (this.#trailer > LINE_LIMIT) throw new BadAnswer('the answer has trailing headers without end')
    }
  }
}
