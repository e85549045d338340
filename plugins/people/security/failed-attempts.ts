import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { CorralError } from '../../../core/errors.ts'
import { clientNetwork } from '../../../core/system/client-network.ts'
import { setNewest } from '../../../core/system/collections.ts'
import type { KnownCredential } from './key-store.ts'

/** Wrong keys that an address may send in a row, and how many are forgiven per second. */
const BURST = 30
const FORGIVEN = 0.5
/** Cost of sending the same wrong key again, as a program with an outdated key does. */
const REPEATED = 0.2
/** Maximum number of remembered addresses. The address that failed longest ago is forgotten first. */
const MAX_ADDRESSES = 10_000
const MAX_GOOD_KEYS = 100
const MAX_LINES = 60

interface Failures {
  /** Wrong keys that are not forgiven yet, and when they were counted (milliseconds). */
  count: number
  at: number
  last: string
  /** Owners of short keys that were accepted from this address. */
  good: Set<string>
}

/** Counts wrong keys and links per address. Valid keys are always accepted, so that nobody can lock others out. */
export class FailedAttempts {
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #failures = new Map<string, Failures>()
  #minuteBegan = Number.NEGATIVE_INFINITY
  #lines = 0

  constructor(log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#log = log
  }

  /** Counts a wrong key or link. @returns the error to throw: the given one, or `rate_limited` after too many */
  refuse(address: string, sent: string, refusal: CorralError, now = performance.now()): CorralError {
    const entry = this.#entry(address, now)
    const before = entry.count
    const digest = createHash('sha256').update(sent).digest('base64url')
    entry.count = Math.min(BURST + 1, before + (entry.last === digest ? REPEATED : 1))
    const isNew = entry.last === ''
    entry.last = digest
    if (entry.count <= BURST) {
      const message = 'A request had a wrong API key or a link that was already used.'
      if (isNew) this.#say({ address, code: refusal.code }, message, now)
      return refusal
    }
    if (before <= BURST) {
      const message = 'Too many wrong API keys from one address: further wrong keys from it are refused for a while.'
      this.#say({ address }, message, now)
    }
    const retryAfter = Math.ceil((entry.count - BURST) / FORGIVEN)
    const message = `Too many requests with wrong API keys came from ${address}. Wait ${retryAfter} s, or send a valid key: requests with a valid key are not delayed.`
    return new CorralError('rate_limited', message, { retryAfter })
  }

  /**
   * Whether a valid key may be used. While an address sends too many wrong keys, its short keys are not accepted, so
   * that the answer does not reveal whether a guess was right. Keys that it used before are.
   */
  accepts({ caller: { owner }, isLong }: KnownCredential, address: string, now = performance.now()): boolean {
    if (isLong) return true
    const known = this.#failures.get(clientNetwork(address))
    if (known && decayed(known, now) > BURST - 1 && !known.good.has(owner)) return false
    const { good } = this.#entry(address, now)
    if (good.size < MAX_GOOD_KEYS) good.add(owner)
    return true
  }

  get size(): number {
    return this.#failures.size
  }

  #entry(address: string, now: number): Failures {
    const name = clientNetwork(address)
    const entry = this.#failures.get(name) ?? { count: 0, at: now, last: '', good: new Set() }
    entry.count = decayed(entry, now)
    entry.at = now
    setNewest(this.#failures, name, entry, MAX_ADDRESSES)
    return entry
  }

  /** Logs a few lines per minute. The first line of the next minute says how many were left out. */
  #say(fields: object, message: string, now: number): void {
    if (now - this.#minuteBegan >= 60_000) {
      const omitted = this.#lines - MAX_LINES
      if (omitted > 0) this.#log.warn({ omitted }, 'Further log lines about wrong API keys were left out.')
      this.#minuteBegan = now
      this.#lines = 0
    }
    this.#lines++
    if (this.#lines <= MAX_LINES) this.#log.warn(fields, message)
  }
}

function decayed({ count, at }: Failures, now: number): number {
  return Math.max(0, count - ((now - at) / 1000) * FORGIVEN)
}
