import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { RequestKind } from './faults.ts'

/** One request and its answer. */
export interface LoggedRequest {
  /** Whether the second listener answered it. */
  cdn: boolean
  /** Number of its connection. */
  connection: number
  method: string
  url: string
  kind: RequestKind | undefined
  /** Path of the requested file, if any. */
  path: string | undefined
  /** Bytes of the file that were written to the connection so far. */
  bytes: number
  /** The answer has ended, complete or not. */
  ended: boolean
}

/** Bytes per second of all connections, or undefined for no limit. */
export interface Bandwidth {
  total?: number
}

/** State of both listeners: the record of all requests, and the rate. */
export class Traffic {
  readonly requests: LoggedRequest[] = []
  bandwidth: Bandwidth = {}
  readonly #numbers = new WeakMap<Socket, number>()
  #connections = 0
  /** When the next bytes may be sent. */
  #next = 0

  log(request: IncomingMessage, response: ServerResponse, cdn: boolean): LoggedRequest {
    let connection = this.#numbers.get(request.socket)
    if (connection === undefined) {
      connection = ++this.#connections
      this.#numbers.set(request.socket, connection)
    }
    const { method, url } = request as { method: string; url: string }
    const entry = { cdn, connection, method, url, kind: undefined, path: undefined, bytes: 0, ended: false }
    this.requests.push(entry)
    response.once('close', () => {
      entry.ended = true
    })
    return entry
  }

  /** Milliseconds that this many bytes must wait. */
  wait(bytes: number): number {
    const { total } = this.bandwidth
    if (!total) return 0
    const now = performance.now()
    const wait = Math.max(0, this.#next - now)
    this.#next = Math.max(now, this.#next) + (bytes / total) * 1000
    return wait
  }

  /** Bytes of one chunk: small, so that a limited connection flows instead of bursting. */
  get chunkSize(): number {
    return Math.max(1024, Math.min(256 * 1024, Math.floor((this.bandwidth.total ?? Infinity) / 50)))
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
