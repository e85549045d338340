/** Seconds' worth of bytes that may come at once. */
const BURST = 0.25

/** Keeps all connections together below a number of bytes a second. */
export class Bandwidth {
  readonly #limit: number
  #debt = 0
  #at: number

  /** @param limit bytes a second; 0 is no limit */
  constructor(limit: number, now: number) {
    this.#limit = limit
    this.#at = now
  }

  /** Bytes that one read should bring at most. */
  get readSize(): number {
    return this.#limit === 0 ? Number.POSITIVE_INFINITY : Math.max(4096, Math.floor(this.#limit * BURST * 0.25))
  }

  /** Milliseconds for which the connection that brought `bytes` must not read. */
  delay(bytes: number, now: number): number {
    if (this.#limit === 0) return 0
    const paid = ((now - this.#at) * this.#limit) / 1000
    this.#debt = Math.max(-this.#limit * BURST, this.#debt - paid) + bytes
    this.#at = now
    return this.#debt <= 0 ? 0 : (this.#debt * 1000) / this.#limit
  }
}
