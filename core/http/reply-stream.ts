import { Socket } from 'node:net'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { CorralError } from '../errors.ts'
import { merged } from '../system/merged.ts'
import { ClientGone } from './client-gone.ts'
import { probeHalfClosed } from './half-closed.ts'
import { logFailure, toCorralError } from './native-error.ts'

export interface ReplyStreamOptions {
  contentType: string
  /** Milliseconds of silence after which a heartbeat is sent; the first one also sends the headers. */
  heartbeatInterval: number
  /** Makes a heartbeat of what is happening now, such as `loading 42%`. */
  heartbeat: (status: string) => string
}

/** A streamed reply. Headers wait for the first write or heartbeat, so that an earlier failure is a real status code. */
export interface ReplyStream {
  /** Whether the status line is out: from then on a failure must travel in the stream. */
  readonly committed: boolean
  /** Whether anything but heartbeats has been sent. */
  readonly written: boolean
  /** What heartbeats say. */
  status: string
  /**
   * Sends text or bytes; wait for the promise before sending more, so that a slow reader is not buffered for. Writes
   * after the end are ignored.
   */
  write(chunk: string | Uint8Array): Promise<void> | undefined
  /** Completes the reply, after a last chunk if given. Safe to call when the client has gone, and a second time. */
  end(lastChunk?: string): void
}

const uncork = (socket: Socket) => socket.uncork()

/** Encodes one chunk of HTTP/1.1's chunked transfer coding (RFC 9112, 7.1). An empty piece would end the reply. */
function httpChunk(piece: string | Uint8Array): string | Uint8Array {
  if (typeof piece === 'string') return `${Buffer.byteLength(piece).toString(16)}\r\n${piece}\r\n`
  const size = `${piece.length.toString(16)}\r\n`
  const chunk = Buffer.allocUnsafe(size.length + piece.length + 2)
  chunk.write(size, 'latin1')
  chunk.set(piece, size.length)
  chunk.write('\r\n', size.length + piece.length, 'latin1')
  return chunk
}

export function openReplyStream(reply: FastifyReply, options: ReplyStreamOptions): ReplyStream {
  const { raw } = reply
  /**
   * Where chunks are written directly. Node's response would write each as four pieces at the end of the tick, which is a
   * tenth to a sixth of the CPU time of a token. Undefined while headers are not sent, and where everything goes through
   * Node's response: HTTP/1.0 has no chunks, a pipelined reply has no socket yet, an injected request has none at all.
   */
  let socket: Socket | undefined

  function commit(): void {
    if (stream.committed) return
    stream.committed = true
    reply.hijack()
    // Hooks that run at send do not run for a hijacked reply; headers set earlier (CORS, request id) are carried over.
    raw.writeHead(
      200,
      merged(reply.getHeaders() as Record<string, string>, {
        'content-type': options.contentType,
        'cache-control': 'no-cache, no-transform',
        'x-accel-buffering': 'no'
      })
    )
    if (!raw.chunkedEncoding || !(raw.socket instanceof Socket)) return
    socket = raw.socket
    // Chunks are encoded here until `end`, where Node takes over again.
    raw.chunkedEncoding = false
    // Corked, so that the headers and the first chunk are one write.
    socket.cork()
    process.nextTick(uncork, socket)
    raw.flushHeaders()
  }

  /** @returns whether more may be sent at once */
  const send = (piece: string | Uint8Array) => (socket ? socket.write(httpChunk(piece)) : raw.write(piece))

  const beat = () => {
    if (!(socket ?? raw).writableNeedDrain) send(options.heartbeat(stream.status))
  }
  const timer = setInterval(() => {
    // The request was answered with a status code instead.
    if (!stream.committed && raw.headersSent) return clearInterval(timer)
    commit()
    beat()
  }, options.heartbeatInterval)
  timer.unref()
  // A client may have left before, while its form was read.
  if (raw.destroyed) clearInterval(timer)
  raw.once('close', () => clearInterval(timer))
  probeHalfClosed(reply, () => {
    if (stream.committed && !raw.writableEnded) beat()
  })

  // No getters: V8 makes a hidden class for each object that has its own, which stays, and the reply with it, until it
  // collects its old generation.
  const stream = {
    status: 'waiting',
    committed: false,
    written: false,
    write(chunk: string | Uint8Array): Promise<void> | undefined {
      if (raw.destroyed || raw.writableEnded) return undefined
      commit()
      stream.written = true
      timer.refresh()
      if (chunk.length === 0 || send(chunk)) return undefined
      const sink = socket ?? raw
      return new Promise(resolve => {
        const done = () => {
          sink.off('drain', done)
          raw.off('close', done)
          resolve()
        }
        sink.on('drain', done)
        raw.on('close', done)
      })
    },
    end(lastChunk?: string): void {
      clearInterval(timer)
      if (raw.destroyed || raw.writableEnded) return
      commit()
      // Node writes the last chunk itself, because trailers are part of it.
      if (socket) raw.chunkedEncoding = true
      raw.end(lastChunk)
    }
  }
  return stream
}

/**
 * Runs work that writes to a stream. Its failure is thrown, and so becomes a status code, while the status line is not
 * out; after that it is the last event of the stream.
 */
export async function endWithFailure(
  stream: ReplyStream,
  { log, record }: FastifyRequest,
  lastEvent: (failure: CorralError) => string,
  work: () => Promise<void>
): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!stream.committed) throw error
    if (error instanceof ClientGone) return
    const failure = toCorralError(error)
    record.failure = failure
    logFailure(failure, log)
    stream.end(lastEvent(failure))
  }
}
