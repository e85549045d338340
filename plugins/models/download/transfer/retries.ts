/** A file is given up after this many failures or refusals in a row without significant progress. */
const MAX_FAILURES = 6
const MAX_REFUSALS = 2
/** Bytes that count as progress. A server that keeps failing after a few bytes must not be retried for ever. */
const PROGRESS_BYTES = 1024 * 1024
/** Maximum wait that a server can ask for, in seconds. */
const MAX_RETRY_AFTER_S = 15 * 60

/** Decides whether and when a file's next request may be made. */
export class Retries {
  readonly #firstDelay: number
  readonly #significant: number
  #failures = 0
  #refusals = 0
  /** Bytes at the last significant progress. */
  #arrived = 0
  #failedAt = Number.NEGATIVE_INFINITY
  /** No new request before this time. */
  waitUntil = 0

  constructor(firstDelay: number, size: number | undefined) {
    this.#firstDelay = firstDelay
    this.#significant = Math.min(PROGRESS_BYTES, Math.max(1, (size ?? PROGRESS_BYTES) / 64))
  }

  /**
   * Counts a failed request. Requests that were running at the same time count as one failure.
   * @param startedAt when that request was started
   * @param arrived bytes of the file received so far
   * @param retryAfter seconds that the server asks clients to wait
   * @returns false if the file must be given up
   */
  failed(now: number, startedAt: number, arrived: number, retryAfter: number | undefined): boolean {
    if (retryAfter !== undefined && retryAfter > MAX_RETRY_AFTER_S) return false
    const pause = retryAfter === undefined ? undefined : retryAfter * 1000
    if (this.#progressed(arrived) || startedAt >= this.#failedAt) {
      this.#failures += 1
      this.#failedAt = now
      this.#wait(now + (pause ?? backOff(this.#failures - 1, this.#firstDelay)))
    }
    if (pause !== undefined) this.#wait(now + pause)
    return this.#failures <= MAX_FAILURES
  }

  /** Counts a refused location. Gives up sooner: a new location helps immediately or not at all. */
  refused(now: number, arrived: number): boolean {
    this.#progressed(arrived)
    this.#refusals += 1
    if (this.#refusals > 1) this.#wait(now + backOff(this.#refusals, this.#firstDelay))
    return this.#refusals <= MAX_REFUSALS
  }

  #progressed(arrived: number): boolean {
    if (arrived - this.#arrived < this.#significant) return false
    this.#arrived = arrived
    this.#failures = 0
    this.#refusals = 0
    return true
  }

  #wait(until: number): void {
    this.waitUntil = Math.max(this.waitUntil, until)
  }
}

/** Upper limit of the first delay. It doubles with each failure. */
export const FIRST_DELAY_MS = 500
const MAX_DELAY_MS = 30_000

/** Returns the milliseconds before the next attempt: random, up to a limit that doubles with each failure. */
export function backOff(failures: number, first: number, random: () => number = Math.random): number {
  return random() * Math.min(MAX_DELAY_MS, first * 2 ** Math.min(failures, 16))
}
