import { createHash } from 'node:crypto'
import { clientNetwork } from '../../../core/system/client-network.ts'
import { setNewest } from '../../../core/system/collections.ts'

/** Wrong keys that an address may send in a row, and how many are forgiven per second. */
const BURST = 30
const FORGIVEN = 0.5
/**
 * Cost of sending the same wrong key again. A program with an outdated key is not guessing, but repeats are not free
 * either.
 */
const REPEATED = 0.2
/** Addresses that are remembered. The one that failed longest ago is forgotten first. */
const MAX_ADDRESSES = 10_000
/** Short keys remembered as valid for one address. */
const MAX_GOOD_KEYS = 100

interface Failures {
  /** Wrong keys that are not forgiven yet, and when they were counted (milliseconds). */
  count: number
  at: number
  last: string
  /** Owners of short keys that were accepted from this address. */
  good: Set<string>
}

/**
 * Counts wrong keys per address. Valid keys are always accepted from the same address, so that nobody can lock others
 * out by sending wrong keys.
 */
export class FailedAttempts {
  readonly #failures = new Map<string, Failures>()

  /**
   * Counts a wrong key.
   * @returns seconds to wait if there were too many, else 0; `first` is true for the first wrong key of a new address
   * and for the first one over the limit
   */
  fail(address: string, key: string, now = performance.now()): { wait: number; first: boolean } {
    const entry = this.#entry(address, now)
    const first = entry.last === ''
    const digest = createHash('sha256').update(key).digest('base64url')
    const cost = entry.last === digest ? REPEATED : 1
    entry.last = digest
    const before = entry.count
    entry.count = Math.min(BURST + 1, before + cost)
    if (entry.count <= BURST) return { wait: 0, first }
    return { wait: Math.ceil((entry.count - BURST) / FORGIVEN), first: before <= BURST }
  }

  /** Whether the address sent so many wrong keys that its short keys are no longer tried, valid or not. */
  isGuessing(address: string, now = performance.now()): boolean {
    const entry = this.#failures.get(clientNetwork(address))
    return entry !== undefined && decayed(entry, now) > BURST - 1
  }

  /** Whether this key was accepted from this address before the guessing started. */
  wasGood(address: string, owner: string): boolean {
    return this.#failures.get(clientNetwork(address))?.good.has(owner) ?? false
  }

  /** Remembers that a short key was valid. */
  succeed(address: string, owner: string, now = performance.now()): void {
    const { good } = this.#entry(address, now)
    if (good.size < MAX_GOOD_KEYS) good.add(owner)
  }

  /** Number of remembered addresses. */
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
}

function decayed({ count, at }: Failures, now: number): number {
  return Math.max(0, count - ((now - at) / 1000) * FORGIVEN)
}
