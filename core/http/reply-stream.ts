import type { FastifyReply, FastifyRequest } from 'fastify'
import type { CorralError } from '../errors.ts'
import { ChunkedResponse } from './chunked-response.ts'
import { ClientDisconnected, clientSignal, probeHalfClosed } from './client-disconnect.ts'
import { errorHeaders, logFailure, nativeErrorBody, toCorralError } from './native-error.ts'
import { clientError } from './server-folders.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** `onSend` hooks of plugins, which Fastify does not run for a hijacked reply. */
    sendHooks: (() => Promise<unknown>)[] | null
  }
}

/**
 * Runs the `onSend` hooks of plugins, once, for a streamed reply whose headers have not been sent. They can set
 * headers, and get `null` as payload.
 * @returns undefined if there are none
 * @throws the error of a hook
 */
export function runSendHooks({ request }: FastifyReply): Promise<void> | undefined {
  // Some tests create a reply without a request.
  const hooks = request?.sendHooks
  if (!hooks) return undefined
  request.sendHooks = null
  return (async () => {
    for (const hook of hooks) await hook()
  })()
}

export interface ReplyStreamOptions {
  contentType: string
  /** Milliseconds of silence after which a heartbeat is sent. The first heartbeat also sends the headers. */
  heartbeatInterval: number
  /** Milliseconds until the first heartbeat of a stream that has sent nothing, if they are fewer. */
  firstHeartbeat?: number
  /** A heartbeat for a status such as `loading 42%`, without content: the request is still retried after it. */
  heartbeat: (status: string) => string
}

/** Calls `beat` when a stream has been silent for too long. */
export class Heartbeats {
  readonly #interval: number
  readonly #beat: () => void
  #timer: NodeJS.Timeout
  #isFirst = true

  constructor({ heartbeatInterval, firstHeartbeat = heartbeatInterval }: ReplyStreamOptions, beat: () => void) {
    this.#interval = heartbeatInterval
    this.#beat = beat
    const first = () => {
      this.postpone()
      beat()
    }
    this.#timer = setTimeout(first, Math.min(firstHeartbeat, heartbeatInterval)).unref()
  }

  /** Called when something was sent. */
  postpone(): void {
    if (!this.#isFirst) return void this.#timer.refresh()
    this.#isFirst = false
    clearTimeout(this.#timer)
    this.#timer = setInterval(this.#beat, this.#interval).unref()
  }

  stop(): void {
    this.#isFirst = false
    clearInterval(this.#timer)
  }
}

/** A streamed reply. Headers wait for the first write or heartbeat, so that an earlier failure gets a status code. */
export interface ReplyStream {
  /** Whether the status line has been sent: later failures must be sent in the stream. */
  readonly committed: boolean
  /** Whether anything but heartbeats has been sent. */
  readonly written: boolean
  status: string
  /** Sends text or bytes; ignored after the end. Wait for the promise, so that nothing is buffered. */
  write(chunk: string | Uint8Array): Promise<void> | undefined
  /** Completes the reply, after a last chunk if given. Ignored after the end or a disconnect. */
  end(lastChunk?: string): void
}

/**
 * Sends a stream that lasts until the client disconnects or the server stops.
 * @param follow begins to send, until `end` is called or the client disconnects. Returns a function that stops it
 */
export async function sendUntilEnd(
  reply: FastifyReply,
  options: ReplyStreamOptions,
  follow: (stream: ReplyStream, end: () => void) => () => void
): Promise<void> {
  const signal = clientSignal(reply)
  const stream = openReplyStream(reply, options)
  stream.status = 'following'
  let stop = () => {}
  try {
    await new Promise<void>(end => {
      stop = follow(stream, end)
      signal.addEventListener('abort', () => end())
      if (signal.aborted) end()
      // Sends the headers even if there is nothing to send yet.
      else if (!stream.committed) void stream.write(': following\n\n')
    })
  } finally {
    stop()
  }
  stream.end()
}

export function openReplyStream(reply: FastifyReply, options: ReplyStreamOptions): ReplyStream {
  const { raw } = reply
  let response: ChunkedResponse | undefined
  let isPrepared = false
  let hooks: Promise<void> | undefined

  /** Runs hooks that set headers before the first piece. @returns undefined once the headers can be sent */
  function preparing(): Promise<void> | undefined {
    if (isPrepared) return undefined
    hooks ??= runSendHooks(reply)?.then(() => {
      isPrepared = true
    })
    isPrepared = hooks === undefined
    return hooks
  }

  function commit(): ChunkedResponse {
    if (response) return response
    stream.committed = true
    response = new ChunkedResponse(reply, { 'content-type': options.contentType })
    return response
  }

  const beat = () => {
    // If a hook fails, the next piece fails.
    const pending = preparing()
    if (pending) return void pending.then(beat, () => heartbeats.stop())
    const response = commit()
    const text = options.heartbeat(stream.status)
    // Without heartbeats, a client that closes its side in the middle of a file counts as disconnected.
    if (text === '') raw.socket?.destroy()
    else if (!response.isFull) response.write(text)
  }
  const heartbeats = new Heartbeats(options, () => {
    // The request was answered with a status code instead.
    if (!stream.committed && raw.headersSent) heartbeats.stop()
    else beat()
  })
  // The client may have disconnected while its form was read.
  if (raw.destroyed) heartbeats.stop()
  raw.once('close', () => heartbeats.stop())
  probeHalfClosed(reply, () => {
    if (stream.committed) beat()
  })

  // No getters: V8 creates a hidden class for each object with its own getters, which keeps the reply in memory until
  // the next major garbage collection.
  const stream = {
    status: 'waiting',
    committed: false,
    written: false,
    write(chunk: string | Uint8Array): Promise<void> | undefined {
      if (raw.destroyed || raw.writableEnded) return undefined
      const pending = preparing()
      if (pending) return pending.then(() => stream.write(chunk))
      const response = commit()
      stream.written = true
      heartbeats.postpone()
      if (response.write(chunk)) return undefined
      return new Promise(resolve => response.whenDrained(resolve))
    },
    end(lastChunk?: string): void {
      heartbeats.stop()
      if (raw.destroyed || raw.writableEnded) return
      const pending = preparing()
      if (!pending) {
        commit().end(lastChunk)
        return
      }
      // If the route has already ended, only this stream can answer.
      reply.hijack()
      pending.then(
        () => stream.end(lastChunk),
        error => sendFailure(reply, toCorralError(error))
      )
    }
  }
  return stream
}

/** Sends an error after Fastify has given up the reply. */
function sendFailure(reply: FastifyReply, failure: CorralError): void {
  const { request, raw } = reply
  request.record.failure = failure
  logFailure(failure, request.log)
  raw.writeHead(failure.status, { ...errorHeaders(failure), 'content-type': 'application/json; charset=utf-8' })
  raw.end(JSON.stringify(nativeErrorBody(clientError(failure, request), request)))
}

/**
 * Runs work that writes to a stream. If it fails before the status line was sent, the error is thrown and becomes a
 * status code. After that, or if `failsInStream`, it becomes the last event of the stream.
 */
export async function endWithFailure(
  stream: ReplyStream,
  request: FastifyRequest,
  lastEvent: (failure: CorralError) => string,
  work: () => Promise<void>,
  failsInStream?: (failure: CorralError) => boolean
): Promise<void> {
  try {
    await work()
  } catch (error) {
    const failure = toCorralError(error)
    const hasLeft = error instanceof ClientDisconnected
    if (!stream.committed && (hasLeft || !failsInStream?.(failure))) throw error
    if (hasLeft) return
    request.record.failure = failure
    logFailure(failure, request.log)
    stream.end(lastEvent(clientError(failure, request)))
  }
}
