/** Refusals within this time count as one. */
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

  /** Called when the server refuses connections or requests as too many. */
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

  /** Records how many bytes a request received in how many milliseconds. */
  received(bytes: number, time: number): void {
    if (bytes > 0 && time > 0) this.#speed = bytes / time
  }

  /** Bytes that make a request worth its wait. */
  get worthwhile(): number {
    if (this.#speed === 0) return MIN_WORTHWHILE_BYTES
    return Math.min(MAX_WORTHWHILE_BYTES, Math.max(MIN_WORTHWHILE_BYTES, this.#wait * WAIT_FACTOR * this.#speed))
  }
}

/** Seconds' worth of bytes that may arrive in one burst. */
const BURST_SECONDS = 0.25

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

  /** Maximum bytes of one read. */
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
