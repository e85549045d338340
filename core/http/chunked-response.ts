import type { ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'

/** Tells proxies to pass on each piece immediately. */
const NOT_HELD_BACK = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }

const uncork = (socket: Socket) => socket.uncork()

/** Encodes one chunk of HTTP/1.1's chunked transfer coding (RFC 9112, 7.1). An empty piece would end the response. */
function httpChunk(piece: string | Uint8Array): string | Uint8Array {
  if (typeof piece === 'string') return `${Buffer.byteLength(piece).toString(16)}\r\n${piece}\r\n`
  const size = `${piece.length.toString(16)}\r\n`
  const chunk = Buffer.allocUnsafe(size.length + piece.length + 2)
  chunk.write(size, 'latin1')
  chunk.set(piece, size.length)
  chunk.write('\r\n', size.length + piece.length, 'latin1')
  return chunk
}

/** A response with status 200 whose body is sent piece by piece. */
export class ChunkedResponse {
  readonly #raw: ServerResponse
  /**
   * The socket to which chunks are written directly. Node's response would write each chunk as four pieces at the end
   * of the tick, which costs 10 to 17 % of the CPU time of a token. Undefined if Node's response must be used: HTTP/1.0
   * has no chunks, a pipelined reply has no socket yet, an injected request has none at all.
   */
  readonly #socket: Socket | undefined

  /**
   * Takes over the reply and sends its headers, with the first piece if it follows immediately.
   * @param headers headers of the stream, in addition to those of the reply
   */
  constructor(reply: FastifyReply, headers: Record<string, string>) {
    const { raw } = reply
    this.#raw = raw
    reply.hijack()
    if (raw.destroyed) return
    // `onSend` hooks do not run for a hijacked reply. Headers that were set earlier (CORS, request id) are kept.
    raw.writeHead(200, Object.assign({}, reply.getHeaders() as Record<string, string>, headers, NOT_HELD_BACK))
    if (!raw.chunkedEncoding || !(raw.socket instanceof Socket)) return
    this.#socket = raw.socket
    // This class encodes chunks until `end`, when Node takes over again.
    raw.chunkedEncoding = false
    // Corked, so that the headers and the first chunk are one write.
    raw.socket.cork()
    process.nextTick(uncork, raw.socket)
    raw.flushHeaders()
  }

  /** Whether written data is queued for a slow reader. */
  get isFull(): boolean {
    return (this.#socket ?? this.#raw).writableNeedDrain
  }

  /**
   * Sends a piece. Ignored after the end, or if the client has disconnected.
   * @returns whether more may be sent without waiting for `whenDrained`
   */
  write(piece: string | Uint8Array): boolean {
    const raw = this.#raw
    if (piece.length === 0 || raw.destroyed || raw.writableEnded) return true
    return this.#socket ? this.#socket.write(httpChunk(piece)) : raw.write(piece)
  }

  /** Calls `done` once, when the reader has read everything or has disconnected. */
  whenDrained(done: () => void): void {
    const sink = this.#socket ?? this.#raw
    const raw = this.#raw
    const settle = () => {
      sink.off('drain', settle)
      raw.off('close', settle)
      done()
    }
    sink.on('drain', settle)
    raw.on('close', settle)
  }

  /** Completes the response, after a last piece if given. Ignored after the end or a disconnect. */
  end(lastPiece?: string): void {
    const raw = this.#raw
    if (raw.destroyed || raw.writableEnded) return
    // Node writes the last chunk itself, because trailers are part of it.
    if (this.#socket) raw.chunkedEncoding = true
    raw.end(lastPiece)
  }
}
