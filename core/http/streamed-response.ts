import type { ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'

/** Proxies pass each piece on as it comes. */
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
export class StreamedResponse {
  readonly #raw: ServerResponse
  /**
   * Where chunks are written directly. Node's response would write each as four pieces at the end of the tick, which is a
   * tenth to a sixth of the CPU time of a token. Undefined where everything goes through Node's response: HTTP/1.0 has no
   * chunks, a pipelined reply has no socket yet, an injected request has none at all.
   */
  readonly #socket: Socket | undefined

  /**
   * Takes the reply over and sends its headers, with the first piece where that comes at once.
   * @param headers those of the stream, besides the ones that the reply has
   */
  constructor(reply: FastifyReply, headers: Record<string, string>) {
    const { raw } = reply
    this.#raw = raw
    reply.hijack()
    if (raw.destroyed) return
    // Hooks that run at send do not run for a hijacked reply; headers set earlier (CORS, request id) are carried over.
    raw.writeHead(200, Object.assign({}, reply.getHeaders() as Record<string, string>, headers, NOT_HELD_BACK))
    if (!raw.chunkedEncoding || !(raw.socket instanceof Socket)) return
    this.#socket = raw.socket
    // Chunks are encoded here until `end`, where Node takes over again.
    raw.chunkedEncoding = false
    // Corked, so that the headers and the first chunk are one write.
    raw.socket.cork()
    process.nextTick(uncork, raw.socket)
    raw.flushHeaders()
  }

  /** Whether what was written waits for a slow reader. */
  get isFull(): boolean {
    return (this.#socket ?? this.#raw).writableNeedDrain
  }

  /**
   * Sends a piece. One that comes after the end, or when the client has gone, is ignored.
   * @returns whether more may be sent at once, before `whenDrained`
   */
  write(piece: string | Uint8Array): boolean {
    const raw = this.#raw
    if (piece.length === 0 || raw.destroyed || raw.writableEnded) return true
    return this.#socket ? this.#socket.write(httpChunk(piece)) : raw.write(piece)
  }

  /** Calls `done` once, when the reader has taken what was written, or has gone. */
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

  /** Completes the response, after a last piece if given. Safe to call when the client has gone, and a second time. */
  end(lastPiece?: string): void {
    const raw = this.#raw
    if (raw.destroyed || raw.writableEnded) return
    // Node writes the last chunk itself, because trailers are part of it.
    if (this.#socket) raw.chunkedEncoding = true
    raw.end(lastPiece)
  }
}
