import type { FastifyReply } from 'fastify'
import { CorralError } from '../errors.ts'
import type { RequestRecord } from './request-record.ts'

declare module 'fastify' {
  interface FastifyInstance {
    drain: Drain
  }
}

/** Seconds after which a refused client may retry: by then a load balancer has noticed, or a new server is there. */
const RETRY_AFTER = 5

/**
 * Whether the server accepts new requests for models. A draining server finishes all accepted requests, including
 * queued ones, so that it can be stopped without losing an answer. Management continues to work: lists, keys, metrics,
 * loads by an operator, and pulls, which can be resumed after a stop.
 */
export class Drain {
  /** When draining began; undefined if the server accepts requests. */
  since: Date | undefined
  /** Number of requests for models in progress or queued. Not a Set, because a Set that has grown keeps its memory. */
  open = 0

  begin(): void {
    this.since ??= new Date()
  }

  end(): void {
    this.since = undefined
  }

  /**
   * Accepts a request once. A refused client must connect again, to another server.
   * @param isTrial whether it tests the draining server itself, and is accepted
   * @throws CorralError `draining`
   */
  admit(reply: FastifyReply, isTrial = false): void {
    const { record } = reply.request
    if (record.admitted) return
    if (this.since && !isTrial) {
      reply.header('connection', 'close')
      throw drainingError()
    }
    record.admitted = true
    this.open++
  }

  leave(record: RequestRecord): void {
    if (record.admitted) this.open--
  }
}

export function drainingError(): CorralError {
  const message =
    'This server does not accept new requests, because it is about to be stopped ("corral drain"). Try again in a moment; ' +
    '"corral drain --undo" ends this.'
  return new CorralError('draining', message, { retryAfter: RETRY_AFTER })
}

/** The error for a request that arrives on an open connection during shutdown. None of the request was processed. */
export function closingError(): CorralError {
  return new CorralError('shutting_down', 'corral is shutting down. Send the request again once it is back.', {
    retryAfter: 1,
    retryable: true
  })
}
