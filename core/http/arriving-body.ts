import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { CorralError, isSystemError } from '../errors.ts'
import { formatBytes } from '../system/bytes.ts'
import { formatDuration } from '../system/duration.ts'
import { ClientDisconnected } from './client-disconnect.ts'
import { sendContinue } from './long-upload.ts'

/* Reads bodies as they arrive. */

/** An upload that `paced` watches. */
export interface ArrivingUpload {
  received: number
  /** Aborted with the reason if it must end, for example to make room for another client. */
  readonly ended: AbortSignal
}

/** Bytes per second below which an upload is aborted after `limits.upload_stall`; a seventh of a telephone line. */
const MIN_PACE = 1000

/**
 * Passes on the pieces of a body as long as they arrive in time. A client may be silent for `stall` milliseconds in
 * total, and each byte adds time. Corral's own processing time does not count.
 * @param stall 0 is unlimited
 * @throws CorralError `over_limit` that names the limit; the reason of `upload.ended`
 */
export async function* paced(body: AsyncIterable<Buffer>, stall: number, upload: ArrivingUpload) {
  const pieces = body[Symbol.asyncIterator]()
  let allowance = stall
  let fail: (error: unknown) => void = () => {}
  const failed = new Promise<never>((_, reject) => {
    fail = reject
  })
  failed.catch(() => {})
  const onEnd = () => fail(upload.ended.reason)
  upload.ended.addEventListener('abort', onEnd, { once: true })
  try {
    for (;;) {
      const asked = performance.now()
      const timer = stall > 0 ? setTimeout(() => fail(stalled(stall, upload.received)), allowance) : undefined
      try {
        const { value, done } = await Promise.race([pieces.next(), failed])
        if (done) return
        upload.received += value.length
        const waited = performance.now() - asked
        allowance = Math.min(stall, allowance - waited + (value.length / MIN_PACE) * 1000)
        yield value
      } finally {
        clearTimeout(timer)
      }
    }
  } finally {
    upload.ended.removeEventListener('abort', onEnd)
    // Not awaited: it settles with the piece that never came.
    void pieces.return?.()
  }
}

function stalled(stall: number, received: number): CorralError {
  return new CorralError(
    'over_limit',
    `The upload stalled after ${formatBytes(received)}: less than ${MIN_PACE} bytes per second arrived for ` +
      `${formatDuration(stall)} (limits.upload_stall). Nothing of it was stored. Send it again over a faster connection.`,
    { details: { limit: 'limits.upload_stall', value: received, maximum: stall / 1000 } }
  )
}

/** Milliseconds in which a client that is still sending can read why its file is refused. */
const REFUSAL_LINGER = 2000

/**
 * Ends the connection of a request that was answered early. Otherwise the server would wait for the rest.
 * @param keepAlive whether the client may use the connection again once it has sent everything
 */
export function endUpload(request: IncomingMessage, keepAlive = true): void {
  const { socket } = request
  if (request.complete) {
    if (!keepAlive) socket.end()
    return
  }
  if (!keepAlive) request.once('end', () => socket.end())
  request.resume()
  const end = () => {
    if (!request.complete) socket.destroy()
  }
  setTimeout(end, REFUSAL_LINGER).unref()
}

/** A request's body. Its connection stays open, so that the client can read a refusal. */
export async function* arriving({ raw }: FastifyRequest): AsyncIterable<Buffer> {
  sendContinue(raw)
  try {
    yield* raw.iterator({ destroyOnReturn: false })
  } catch (error) {
    throw isSystemError(error, 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE') ? new ClientDisconnected() : error
  }
}
