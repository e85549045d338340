import type { FastifyReply } from 'fastify'
import { CorralError } from '../errors.ts'
import type { RequestRecord } from './request-record.ts'

declare module 'fastify' {
  interface FastifyInstance {
    drain: Drain
  }
}

/** Seconds after which a refused client may try again: by then a load balancer has noticed, or a new server is there. */
const RETRY_AFTER = 5

/**
 * Whether the server takes new requests for models. One that drains goes on with all that it has taken, those that wait
 * included, so that it can be stopped without anybody losing an answer. What manages it goes on too: lists, keys, metrics,
 * loads by an operator, and pulls, since a stop loses nothing of them.
 */
export class Drain {
  #since: Date | undefined
  /** Requests for models that were taken and are not over, counted: tables that a Set has outgrown keep their records. */
  #open = 0

  /** When it began; undefined where the server takes requests. */
  get since(): Date | undefined {
    return this.#since
  }

  /** How many requests for models are answered, or wait. */
  get open(): number {
    return this.#open
  }

  begin(): void {
    this.#since ??= new Date()
  }

  end(): void {
    this.#since = undefined
  }

  /**
   * Takes a request for a model, once however often it asks. Its connection ends with a refusal: the next request of the
   * client is to find another server.
   * @throws CorralError `draining`
   */
  admit(reply: FastifyReply): void {
    const { record } = reply.request
    if (record.admitted) return
    if (this.#since) {
      reply.header('connection', 'close')
      throw drainingError()
    }
    record.admitted = true
    this.#open++
  }

  /** Takes note that a request is over. */
  leave(record: RequestRecord): void {
    if (record.admitted) this.#open--
  }
}

export function drainingError(): CorralError {
  return new CorralError(
    'draining',
    'This server takes no new requests, since it is about to be stopped ("corral drain"). Try again in a moment; ' +
      '"corral drain --undo" ends this.',
    { retryAfter: RETRY_AFTER }
  )
}

/** The refusal of a request that comes, on a connection of before, once the server ends: nothing of it was done. */
export function closingError(): CorralError {
  return new CorralError('shutting_down', 'corral is shutting down. Send the request again once it is back.', {
    retryAfter: 1,
    retryable: true
  })
}
