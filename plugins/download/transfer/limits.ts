/** Milliseconds for which refusals count as one, and until a connection is added after a refusal. */
const SAME_TIME = 1000
const COOL_DOWN = 10_000

/** How many connections a server gets: half as many when it refuses some, then one more every few seconds. */
export class ConnectionLimit {
  readonly #most: number
  #limit: number
  #changedAt = Number.NEGATIVE_INFINITY

  constructor(most: number) {
    this.#most = most
    this.#limit = most
  }

  current(now: number): number {
    while (this.#limit < this.#most && now - this.#changedAt >= COOL_DOWN) {
      this.#limit += 1
      this.#changedAt += COOL_DOWN
    }
    return this.#limit
  }

  /** The server refused connections or requests as too many. */
  overloaded(now: number): void {
    if (now - this.#changedAt < SAME_TIME) return
    this.#limit = Math.max(1, Math.floor(this.current(now) / 2))
    this.#changedAt = now
  }
}

/** Seconds' worth of bytes that may arrive in one burst. */
const BURST = 0.25

/** Limits all connections together to a number of bytes per second. */
export class Bandwidth {
  readonly #limit: number
  #debt = 0
  #at: number

  /** @param limit bytes per second; 0 means no limit */
  constructor(limit: number, now: number) {
    this.#limit = limit
    this.#at = now
  }

  /** Most bytes that one read should take. */
  get readSize(): number {
    return this.#limit === 0 ? Number.POSITIVE_INFINITY : Math.max(4096, Math.floor(this.#limit * BURST * 0.25))
  }

  /** Milliseconds for which the connection that received `bytes` must not read. */
  delay(bytes: number, now: number): number {
    if (this.#limit === 0) return 0
    const paid = ((now - this.#at) * this.#limit) / 1000
    this.#debt = Math.max(-this.#limit * BURST, this.#debt - paid) + bytes
    this.#at = now
    return this.#debt <= 0 ? 0 : (this.#debt * 1000) / this.#limit
  }
}
