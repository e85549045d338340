import { totalmem } from 'node:os'
import { getHeapStatistics } from 'node:v8'
import type { FastifyRequest, RouteOptions } from 'fastify'
import { CorralError } from '../errors.ts'
import { formatBytes, parseBytes } from '../system/bytes.ts'
import { addTo, OpenMap } from '../system/open-tables.ts'
import type { BodyHold, RequestRecord } from './request-record.ts'

declare module 'fastify' {
  interface FastifyInstance {
    bodyMemory: BodyMemory
  }

  interface FastifyContextConfig {
    /**
     * `small`: a name or a few settings. `large`: prompts, images, sounds; the default for outside plugins. `streamed`:
     * the route reads the body as it arrives, and limits it itself.
     */
    bodySize?: 'small' | 'large' | 'streamed'
  }
}

/** Maximum body of a route that anyone may call: a ticket, the secret of a link. */
const MAX_PUBLIC_BODY_BYTES = 4096
/** Maximum body of a route that takes names and settings. */
const MAX_SMALL_BODY_BYTES = 256 * 1024
/**
 * Uncounted bytes of each body. They allow a client whose share is used up, and others at its address, to send short
 * requests. `limits.connections` limits their number.
 */
const UNCOUNTED_BYTES = 128 * 1024
/** Seconds after which a client that was refused for lack of memory may retry. */
const RETRY_AFTER = 2

/** Maximum bytes of a route's body. @param most `body_limit`, in bytes */
export function routeBodyLimit({ bodyLimit, config }: Partial<RouteOptions>, most: number): number {
  if (bodyLimit !== undefined) return Math.min(bodyLimit, most)
  if (config?.role === 'anyone') return Math.min(MAX_PUBLIC_BODY_BYTES, most)
  return config?.bodySize === 'small' ? Math.min(MAX_SMALL_BODY_BYTES, most) : most
}

/**
 * Reads the settings. 0 is automatic: a sixteenth of the machine's memory, but at most a quarter of V8's heap, where
 * parsed bodies are; and a quarter of that for one client. One body of `bodyLimit` always fits.
 */
export function bodyMemoryLimits(
  settings: { body_memory?: string | number; body_memory_per_client?: string | number },
  bodyLimit: number,
  machine = Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY),
  heap = getHeapStatistics().heap_size_limit
): { total: number; perClient: number } {
  const roomy = 2 * bodyLimit
  const total = parseBytes(settings.body_memory) || Math.max(roomy, Math.floor(Math.min(machine / 16, heap / 4)))
  const perClient = parseBytes(settings.body_memory_per_client) || Math.max(roomy, Math.floor(total / 4))
  return { total, perClient: Math.min(total, perClient) }
}

/**
 * Counts the memory of request bodies, from their first byte until their requests are over: a parsed body stays in
 * memory while its request waits for an engine or is answered.
 */
export class BodyMemory {
  readonly #limits: () => ReturnType<typeof bodyMemoryLimits>
  /** Counted bytes of each client that has any. */
  readonly #held = new OpenMap<string, number>()
  #total = 0

  constructor(limits: () => ReturnType<typeof bodyMemoryLimits>) {
    this.#limits = limits
  }

  get total(): number {
    return this.#total
  }

  /**
   * Counts more bytes for the body of a request.
   * @throws CorralError `body_too_large` for a body that exceeds a client's whole share, `too_busy` if its client's
   * share or the memory for all is used up. The body is no longer counted then.
   */
  take({ record, caller }: Pick<FastifyRequest, 'record' | 'caller'>, bytes: number): void {
    record.body ??= { client: caller.turn, bytes: 0 }
    const hold = record.body
    const counted = countedBytes(hold)
    hold.bytes += bytes
    const more = countedBytes(hold) - counted
    if (more === 0) return
    const held = this.#held.get(hold.client) ?? 0
    const refusal = this.#refusal(counted + more, held + more, this.#total + more)
    if (refusal) {
      hold.bytes -= bytes
      this.release(record)
      throw refusal
    }
    addTo(this.#held, hold.client, more)
    this.#total += more
  }

  /** Counts at least this many bytes for the body of a request. @throws as `take` */
  takeInAll(request: Pick<FastifyRequest, 'record' | 'caller'>, bytes: number): void {
    const more = bytes - (request.record.body?.bytes ?? 0)
    if (more > 0) this.take(request, more)
  }

  /** Counts the body of a request for its current caller. @throws as `take` */
  takeAgain(request: Pick<FastifyRequest, 'record' | 'caller'>): void {
    const bytes = request.record.body?.bytes ?? 0
    this.release(request.record)
    this.take(request, bytes)
  }

  release(record: Pick<RequestRecord, 'body'>): void {
    const { body } = record
    record.body = undefined
    const counted = body ? countedBytes(body) : 0
    if (!body || counted === 0) return
    addTo(this.#held, body.client, -counted)
    this.#total -= counted
  }

  #refusal(body: number, client: number, all: number): CorralError | undefined {
    const { total, perClient } = this.#limits()
    const options = { retryAfter: RETRY_AFTER }
    const own = `one client, which is ${formatBytes(perClient)} (limits.body_memory_per_client)`
    if (body > perClient) {
      const message = `The request body exceeds the memory for the bodies of ${own}. Send a smaller one, or have the admin raise the limit.`
      return new CorralError('body_too_large', message)
    }
    if (client > perClient) {
      const message = `The bodies of your unanswered requests use all the memory for ${own}. Wait until some have been answered, then send this one again.`
      return new CorralError('too_busy', message, options)
    }
    if (all <= total) return undefined
    const message = `The bodies of all unanswered requests use all the memory for them, which is ${formatBytes(total)} (limits.body_memory). Send this one again in a moment.`
    return new CorralError('too_busy', message, options)
  }
}

function countedBytes({ bytes }: BodyHold): number {
  return Math.max(0, bytes - UNCOUNTED_BYTES)
}
