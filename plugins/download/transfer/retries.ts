/** Consecutive failures, and consecutive refusals, without a byte received, after which a file is given up. */
const MAX_FAILURES = 6
const MAX_REFUSALS = 2
/** Milliseconds without significant progress after which a file is given up in any case. */
const LONGEST_WAIT = 15 * 60_000
/** Longest wait that a server can ask for, in milliseconds. */
const LONGEST_RETRY_AFTER = 15 * 60_000
const SIGNIFICANT = 1024 * 1024

/** Decides whether and when a file's next request may be made. */
export class Retries {
  readonly #firstDelay: number
  readonly #significant: number
  #failures = 0
  #refusals = 0
  #arrived = 0
  #marked = 0
  #markedAt: number
  #failedAt = Number.NEGATIVE_INFINITY
  /** No new request before this moment. */
  waitUntil = 0

  constructor(firstDelay: number, size: number | undefined, now: number) {
    this.#firstDelay = firstDelay
    this.#significant = Math.min(SIGNIFICANT, Math.max(1, (size ?? SIGNIFICANT) / 64))
    this.#markedAt = now
  }

  /**
   * A request failed. Requests that were running at the same time count as one failure.
   * @param startedAt when that request was started
   * @param arrived bytes of the file received so far
   * @param retryAfter seconds that the server wants clients to wait
   * @returns false when the file is to be given up
   */
  failed(now: number, startedAt: number, arrived: number, retryAfter: number | undefined): boolean {
    const progressed = this.#progress(now, arrived)
    const pause = retryAfter === undefined ? undefined : Math.min(LONGEST_RETRY_AFTER, retryAfter * 1000)
    if (startedAt >= this.#failedAt || progressed) {
      this.#failures = progressed ? 1 : this.#failures + 1
      this.#failedAt = now
      this.#wait(now + (pause ?? backOff(this.#failures - 1, this.#firstDelay)))
    }
    if (pause !== undefined) this.#wait(now + pause)
    return this.#failures <= MAX_FAILURES && now - this.#markedAt < LONGEST_WAIT
  }

  /** A location was refused. As `failed`, but given up sooner: a new location helps at once or not at all. */
  refused(now: number, arrived: number): boolean {
    this.#refusals = this.#progress(now, arrived) ? 1 : this.#refusals + 1
    if (this.#refusals > 1) this.#wait(now + backOff(this.#refusals, this.#firstDelay))
    return this.#refusals <= MAX_REFUSALS && now - this.#markedAt < LONGEST_WAIT
  }

  #progress(now: number, arrived: number): boolean {
    const progressed = arrived > this.#arrived
    this.#arrived = arrived
    if (progressed) {
      this.#failures = 0
      this.#refusals = 0
    }
    if (arrived - this.#marked >= this.#significant) {
      this.#marked = arrived
      this.#markedAt = now
    }
    return progressed
  }

  #wait(until: number): void {
    this.waitUntil = Math.max(this.waitUntil, until)
  }
}

/** Longest first delay, in milliseconds; it doubles with each failure. */
export const FIRST_DELAY = 500
const LONGEST_DELAY = 30_000

/** Milliseconds before the next attempt: evenly distributed up to a limit that doubles with each failure. */
export function backOff(failures: number, first: number, random: () => number = Math.random): number {
  return random() * Math.min(LONGEST_DELAY, first * 2 ** Math.min(failures, 16))
}
