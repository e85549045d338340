import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { FaultKind, RequestKind } from './faults.ts'

/** One request and its answer. */
export interface LoggedRequest {
  /** Epoch milliseconds. */
  at: number
  /** Whether the second listener answered it. */
  cdn: boolean
  /** Number of its connection. */
  connection: number
  method: string
  url: string
  headers: IncomingMessage['headers']
  kind: RequestKind | undefined
  /** `owner/name` and the path of the requested file, if any. */
  repository: string | undefined
  path: string | undefined
  /** First requested byte and the byte after the last, or undefined for the whole file. */
  range: [number, number] | undefined
  status: number
  /** Bytes of the file that were written to the connection so far. */
  bytes: number
  faults: FaultKind['kind'][]
  /** The answer has ended, complete or not. */
  ended: boolean
}

/** Bytes per second, or undefined for no limit. */
export interface Bandwidth {
  perConnection?: number
  total?: number
}

/** Limits the rate of bytes. */
class Pace {
  #next = 0

  /** Milliseconds to wait before this many bytes may be sent. */
  take(bytes: number, bytesPerSecond: number): number {
    const now = performance.now()
    const wait = Math.max(0, this.#next - now)
    this.#next = Math.max(now, this.#next) + (bytes / bytesPerSecond) * 1000
    return wait
  }
}

/** State of both listeners: the record of all requests, and the rates. */
export class Traffic {
  readonly requests: LoggedRequest[] = []
  bandwidth: Bandwidth = {}
  readonly #numbers = new WeakMap<Socket, number>()
  readonly #paces = new WeakMap<Socket, Pace>()
  readonly #total = new Pace()
  #connections = 0

  log(request: IncomingMessage, response: ServerResponse, cdn: boolean): LoggedRequest {
    let connection = this.#numbers.get(request.socket)
    if (connection === undefined) {
      connection = ++this.#connections
      this.#numbers.set(request.socket, connection)
    }
    const entry: LoggedRequest = {
      at: Date.now(),
      cdn,
      connection,
      method: request.method!,
      url: request.url!,
      headers: request.headers,
      kind: undefined,
      repository: undefined,
      path: undefined,
      range: undefined,
      status: 0,
      bytes: 0,
      faults: [],
      ended: false
    }
    this.requests.push(entry)
    response.once('close', () => {
      entry.status ||= response.headersSent ? response.statusCode : 0
      entry.ended = true
    })
    return entry
  }

  /** Milliseconds that this many bytes must wait on this connection. */
  wait(socket: Socket, bytes: number): number {
    const { perConnection, total } = this.bandwidth
    let wait = total ? this.#total.take(bytes, total) : 0
    if (perConnection) {
      let pace = this.#paces.get(socket)
      if (!pace) {
        pace = new Pace()
        this.#paces.set(socket, pace)
      }
      wait = Math.max(wait, pace.take(bytes, perConnection))
    }
    return wait
  }

  /** Bytes of one chunk: small, so that a limited connection flows instead of bursting. */
  get chunkSize(): number {
    const slowest = Math.min(this.bandwidth.perConnection ?? Infinity, this.bandwidth.total ?? Infinity)
    return Math.max(1024, Math.min(256 * 1024, Math.floor(slowest / 50)))
  }

  /** Answers with bytes of files. */
  transfers(path?: string): LoggedRequest[] {
    return this.requests.filter(
      request => request.kind === 'bytes' && request.method === 'GET' && (path === undefined || request.path === path)
    )
  }

  /** Served bytes of one file or of all files. */
  bytes(path?: string): number {
    return this.transfers(path).reduce((sum, request) => sum + request.bytes, 0)
  }

  /** Running answers with bytes. */
  active(): number {
    return this.transfers().filter(request => !request.ended).length
  }
}
