import { createHash } from 'node:crypto'
import { clientNetwork } from '../../../core/system/client-network.ts'
import { setNewest } from '../../../core/system/newest-entries.ts'

/** Wrong keys that an address may send at once; this many a second are forgiven. */
const BURST = 30
const FORGIVEN = 0.5
/** What sending the same wrong key again counts: a program with an old key is no guesser, but is not free either. */
const REPEATED = 0.2
/** Addresses that are remembered; those that failed longest ago are forgotten first. */
const MAX_ADDRESSES = 10_000
/** Keys that an address is remembered to have used. */
const MAX_GOOD_KEYS = 100

interface Failures {
  /** Wrong keys that are not forgiven yet, and when they were counted (milliseconds). */
  count: number
  at: number
  last: string
  /** Owners of short keys that were right from this address before. */
  good: Set<string>
}

/**
 * Wrong keys by the addresses that sent them. Only wrong keys are refused for it: whoever has a right one is let in from
 * the same address all the time, so that nobody can shut others out by sending wrong ones.
 */
export class FailedAttempts {
  readonly #failures = new Map<string, Failures>()

  /**
   * Counts a wrong key.
   * @returns seconds to wait where there were too many of them, else 0; `first` for the first one that is too many, and
   *   where the address was not known
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

  /** Whether an address has sent so many wrong keys that short ones are not tried for it, right or wrong. */
  isGuessing(address: string, now = performance.now()): boolean {
    const entry = this.#failures.get(clientNetwork(address))
    return entry !== undefined && decayed(entry, now) > BURST - 1
  }

  /** Whether this key was right from this address before the guessing began. */
  wasGood(address: string, owner: string): boolean {
    return this.#failures.get(clientNetwork(address))?.good.has(owner) ?? false
  }

  /** Remembers that a short key was right. */
  succeed(address: string, owner: string, now = performance.now()): void {
    const { good } = this.#entry(address, now)
    if (good.size < MAX_GOOD_KEYS) good.add(owner)
  }

  /** How many addresses are remembered. */
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
