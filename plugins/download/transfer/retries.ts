/** Failures in a row without a byte, and refusals in a row without a byte, after which a file is given up. */
const MOST_FAILURES = 6
const MOST_REFUSALS = 2
/** Milliseconds without noteworthy progress after which it is given up all the same. */
const LONGEST_WAIT = 15 * 60_000
const NOTEWORTHY = 1024 * 1024

/** Decides whether and when a file's next connection may be tried. */
export class Retries {
  readonly #firstDelay: number
  readonly #noteworthy: number
  #failures = 0
  #refusals = 0
  #arrived = 0
  #noted = 0
  #notedAt: number
  #failedAt = Number.NEGATIVE_INFINITY
  /** No new connection before this moment. */
  waitUntil = 0

  constructor(firstDelay: number, size: number | undefined, now: number) {
    this.#firstDelay = firstDelay
    this.#noteworthy = Math.min(NOTEWORTHY, Math.max(1, (size ?? NOTEWORTHY) / 64))
    this.#notedAt = now
  }

  /**
   * A connection failed. Those that were under way together count once.
   * @param startedAt when that connection was started
   * @param arrived bytes of the file that have come, in all
   * @param wish milliseconds that the server wants to be left alone
   * @returns false when it is to be given up
   */
  failed(now: number, startedAt: number, arrived: number, wish: number | undefined): boolean {
    const progressed = this.#progress(now, arrived)
    if (startedAt >= this.#failedAt || progressed) {
      this.#failures = progressed ? 1 : this.#failures + 1
      this.#failedAt = now
      this.#wait(now + (wish ?? backOff(this.#failures - 1, this.#firstDelay)))
    }
    if (wish !== undefined) this.#wait(now + wish)
    return this.#failures <= MOST_FAILURES && now - this.#notedAt < LONGEST_WAIT
  }

  /** A location is no longer good. As `failed`, but sooner given up: a fresh one helps at once or not at all. */
  refused(now: number, arrived: number): boolean {
    this.#refusals = this.#progress(now, arrived) ? 1 : this.#refusals + 1
    if (this.#refusals > 1) this.#wait(now + backOff(this.#refusals, this.#firstDelay))
    return this.#refusals <= MOST_REFUSALS && now - this.#notedAt < LONGEST_WAIT
  }

  #progress(now: number, arrived: number): boolean {
    const progressed = arrived > this.#arrived
    this.#arrived = arrived
    if (progressed) {
      this.#failures = 0
      this.#refusals = 0
    }
    if (arrived - this.#noted >= this.#noteworthy) {
      this.#noted = arrived
      this.#notedAt = now
    }
    return progressed
  }

  #wait(until: number): void {
    this.waitUntil = Math.max(this.waitUntil, until)
  }
}

/** Milliseconds of the first delay at most, before it doubles. */
export const FIRST_DELAY = 500
const LONGEST_DELAY = 30_000
/** Longest that a server's own wish is followed. */
const LONGEST_WISH = 15 * 60_000

/** Milliseconds before the next try after so many failures in a row; any length up to the limit is as likely. */
export function backOff(failures: number, first: number, random: () => number = Math.random): number {
  return random() * Math.min(LONGEST_DELAY, first * 2 ** Math.min(failures, 16))
}

/**
 * Milliseconds that a server wants to be left alone, from `RateLimit` (`"api";r=0;t=55`, one second added) or
 * `Retry-After` (seconds or a date). Undefined where it says nothing.
 */
export function wishedDelay(headers: ReadonlyMap<string, string>, now: number): number | undefined {
  const limit = headers.get('ratelimit')
  const remaining = limit === undefined ? undefined : /;\s*r=(\d+)/.exec(limit)?.[1]
  const reset = limit === undefined ? undefined : /;\s*t=(\d+)/.exec(limit)?.[1]
  if (remaining !== undefined && reset !== undefined && Number(remaining) === 0) {
    return Math.min(LONGEST_WISH, (Number(reset) + 1) * 1000)
  }
  const value = headers.get('retry-after')
  if (value === undefined) return undefined
  if (/^\d+(\.\d+)?$/.test(value)) return Math.min(LONGEST_WISH, Number(value) * 1000)
  const date = Date.parse(value)
  return Number.isNaN(date) ? undefined : Math.min(LONGEST_WISH, Math.max(0, date - now))
}
