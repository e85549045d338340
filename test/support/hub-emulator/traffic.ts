import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { FaultKind, RequestKind } from './faults.ts'

/** One request as it was answered. */
export interface LoggedRequest {
  /** Epoch milliseconds. */
  at: number
  /** Whether the second listener answered it. */
  cdn: boolean
  /** Numbers the connection it came over. */
  connection: number
  method: string
  url: string
  headers: IncomingMessage['headers']
  kind: RequestKind | undefined
  /** `owner/name` and the file's path in it, where the request is about one. */
  repository: string | undefined
  path: string | undefined
  /** First byte asked for and the one after the last; undefined where the whole file was asked for. */
  range: [number, number] | undefined
  status: number
  /** Bytes of the file that were handed to the connection so far. */
  bytes: number
  faults: FaultKind['kind'][]
  /** The answer is over, whole or not. */
  ended: boolean
}

/** Bytes a second; undefined is no limit. */
export interface Bandwidth {
  perConnection?: number
  total?: number
}

/** Lets bytes pass at a rate. */
class Pace {
  #next = 0

  /** Milliseconds to wait before so many bytes may go. */
  take(bytes: number, bytesPerSecond: number): number {
    const now = performance.now()
    const wait = Math.max(0, this.#next - now)
    this.#next = Math.max(now, this.#next) + (bytes / bytesPerSecond) * 1000
    return wait
  }
}

/** What both listeners share: the record of all requests, and the rates. */
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

  /** Milliseconds that so many bytes have to wait on this connection. */
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

  /** Bytes of one chunk, so that a limited connection flows rather than bursts. */
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

  /** How many bytes of a file, or of all files, were served. */
  bytes(path?: string): number {
    return this.transfers(path).reduce((sum, request) => sum + request.bytes, 0)
  }

  /** Answers with bytes that are under way. */
  active(): number {
    return this.transfers().filter(request => !request.ended).length
  }
}
