import { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import type { Caller } from '../contracts/callers.ts'
import { ClientDisconnected } from './client-disconnect.ts'

/*
 * Requests that corral sends to itself on behalf of a client, such as the lines of a batch. They pass through every
 * hook and route as if the client had sent them, but without a connection.
 */

const callers = new WeakMap<IncomingMessage, Caller>()

/** The sender of a request that was already authorized: the client on whose behalf corral sent it to itself. */
export const getInternalCaller = (request: IncomingMessage) => callers.get(request)

/** Authorizes a request from outside, of a caller that its listener has identified. */
export const setCaller = (request: IncomingMessage, caller: Caller) => void callers.set(request, caller)

export interface InnerReply {
  status: number
  requestId: string
  /** Seconds after which it may be retried; 0 if the reply does not say. */
  retryAfter: number
  body: Buffer
}

export interface InnerRequest {
  url: string
  /** JSON for a `POST`. Without it, a `GET` is sent. */
  body?: string
  /** Aborting it acts like a disconnect of the client. */
  signal: AbortSignal
  /** Receives the pieces of a successful reply, whose body is then empty. */
  onPiece?: (piece: Buffer) => void
}

/**
 * Sends a request to the application and returns the whole reply.
 * @throws the signal's reason
 */
export async function sendInternally(
  app: FastifyInstance,
  caller: Caller,
  { url, body, signal, onPiece }: InnerRequest
): Promise<InnerReply> {
  signal.throwIfAborted()
  const socket = new InnerConnection(caller.address) as unknown as Socket
  const request = new IncomingMessage(socket)
  const bytes = body === undefined ? undefined : Buffer.from(body)
  Object.assign(request, {
    method: bytes ? 'POST' : 'GET',
    url,
    httpVersion: '1.1',
    httpVersionMajor: 1,
    httpVersionMinor: 1,
    complete: true,
    headers: {
      host: 'localhost',
      ...(bytes && { 'content-type': 'application/json', 'content-length': String(bytes.length) })
    }
  })
  callers.set(request, caller)
  const response = new InnerResponse(request)
  response.onPiece = onPiece
  response.assignSocket(socket)
  return await new Promise((resolve, reject) => {
    const leave = () => socket.destroy()
    signal.addEventListener('abort', leave, { once: true })
    // As with a real connection: the reply ends first, then the connection.
    response.once('finish', () => socket.destroy())
    response.once('close', () => {
      signal.removeEventListener('abort', leave)
      if (!response.writableFinished) return reject(signal.aborted ? signal.reason : new ClientDisconnected())
      const requestId = String(response.getHeader('x-request-id') ?? '')
      const retryAfter = Number(response.getHeader('retry-after') ?? 0) || 0
      resolve({ status: response.statusCode, requestId, retryAfter, body: Buffer.concat(response.pieces) })
    })
    app.routing(request, response)
    if (bytes) request.push(bytes)
    request.push(null)
  })
}

/** Accepts everything that is written to it immediately. */
class InnerConnection extends Duplex {
  /** The client's address, for logs. */
  readonly remoteAddress: string

  constructor(remoteAddress: string) {
    // Writers of streams never wait, because nothing would tell them to continue.
    super({ writableHighWaterMark: Number.MAX_SAFE_INTEGER })
    this.remoteAddress = remoteAddress
  }

  override _read(): void {}

  override _write(_bytes: Buffer, _encoding: string, done: () => void): void {
    done()
  }

  setTimeout(): this {
    return this
  }
}

/** Collects the body that is written to it, or passes it on. */
class InnerResponse extends ServerResponse {
  readonly pieces: Buffer[] = []
  onPiece: InnerRequest['onPiece']

  /** Overridden so that these headers are stored like others. */
  // biome-ignore lint/suspicious/noExplicitAny: the forms that Node.js has of it
  override writeHead(status: number, ...given: any[]): this {
    const headers = given.at(-1)
    if (typeof headers === 'object' && headers !== null) this.setHeaders(new Map(Object.entries(headers)))
    return super.writeHead(status)
  }

  // biome-ignore lint/suspicious/noExplicitAny: the forms that Node.js has of it
  override write(...given: any[]): boolean {
    this.#keep(given[0], given[1])
    ;(super.write as (...all: unknown[]) => boolean)(...given)
    // Node.js's server tells a response when its connection has drained. Here nothing does, and no write needs to wait.
    return true
  }

  // biome-ignore lint/suspicious/noExplicitAny: the forms that Node.js has of it
  override end(...given: any[]): this {
    this.#keep(given[0], given[1])
    return (super.end as (...all: unknown[]) => this)(...given)
  }

  #keep(piece: unknown, encoding: unknown): void {
    const take = this.onPiece && this.statusCode < 400 ? this.onPiece : (bytes: Buffer) => this.pieces.push(bytes)
    if (typeof piece === 'string') {
      take(Buffer.from(piece, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'))
    } else if (piece instanceof Uint8Array) take(Buffer.from(piece))
  }
}
