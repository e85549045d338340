const SAME_REFUSAL_MS = 1000
const COOL_DOWN_MS = 10_000

/** The number of connections to a server: halved when it refuses some, then raised by one every few seconds. */
export class ConnectionLimit {
  readonly #most: number
  #limit: number
  #changedAt = Number.NEGATIVE_INFINITY

  constructor(most: number) {
    this.#most = most
    this.#limit = most
  }

  current(now: number): number {
    while (this.#limit < this.#most && now - this.#changedAt >= COOL_DOWN_MS) {
      this.#limit += 1
      this.#changedAt += COOL_DOWN_MS
    }
    return this.#limit
  }

  overloaded(now: number): void {
    if (now - this.#changedAt < SAME_REFUSAL_MS) return
    this.#limit = Math.max(1, Math.floor(this.current(now) / 2))
    this.#changedAt = now
  }
}

/** A request is large enough if its body takes this many times as long as the wait for its answer. */
const WAIT_FACTOR = 50
const MIN_WORTHWHILE_BYTES = 16 * 1024 * 1024
const MAX_WORTHWHILE_BYTES = 256 * 1024 * 1024

/**
 * The speed and latency that a file's requests have shown. The digest takes bytes in order: while several connections
 * download large parts, it can only process the first part, and the backlog delays the end. So requests are only as
 * large as needed to make their waits cheap.
 */
export class LineSpeed {
  /** The shortest wait for an answer, in milliseconds, and the bytes per millisecond of the last request. */
  #wait = Number.POSITIVE_INFINITY
  #speed = 0

  answered(wait: number): void {
    this.#wait = Math.min(this.#wait, wait)
  }

  received(bytes: number, time: number): void {
    if (bytes > 0 && time > 0) this.#speed = bytes / time
  }

  get worthwhile(): number {
    if (this.#speed === 0) return MIN_WORTHWHILE_BYTES
    return Math.min(MAX_WORTHWHILE_BYTES, Math.max(MIN_WORTHWHILE_BYTES, this.#wait * WAIT_FACTOR * this.#speed))
  }
}

/** Seconds' worth of bytes that may arrive in one burst. */
const BURST_SECONDS = 0.25

export class Bandwidth {
  readonly #limit: number
  #debt = 0
  #at: number

  /** @param limit bytes per second; 0 means no limit */
  constructor(limit: number, now: number) {
    this.#limit = limit
    this.#at = now
  }

  get readSize(): number {
    return this.#limit === 0 ? Number.POSITIVE_INFINITY : Math.max(4096, Math.floor(this.#limit * BURST_SECONDS * 0.25))
  }

  /** Returns the milliseconds for which a connection that received `bytes` must not read. */
  delay(bytes: number, now: number): number {
    if (this.#limit === 0) return 0
    const paid = ((now - this.#at) * this.#limit) / 1000
    this.#debt = Math.max(-this.#limit * BURST_SECONDS, this.#debt - paid) + bytes
    this.#at = now
    return this.#debt <= 0 ? 0 : (this.#debt * 1000) / this.#limit
  }
}

/** A file is given up after this many failures or refusals in a row without significant progress. */
const MAX_FAILURES = 6
const MAX_REFUSALS = 2
/** Minimum bytes of progress. A server that keeps failing after a few bytes must not be retried forever. */
const PROGRESS_BYTES = 1024 * 1024
const MAX_RETRY_AFTER_S = 15 * 60

export class Retries {
  readonly #firstDelay: number
  readonly #significant: number
  #failures = 0
  #refusals = 0
  #arrived = 0
  #failedAt = Number.NEGATIVE_INFINITY
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
export const backOff = (failures: number, first: number, random: () => number = Math.random): number =>
  random() * Math.min(MAX_DELAY_MS, first * 2 ** Math.min(failures, 16))
