/** Milliseconds over which speed is measured before a connection is added. */
const WINDOW = 100
/** Milliseconds before another connection is tried after one that brought nothing. */
const TRY_AGAIN = 5000
/** Milliseconds without more connections after a server had enough. */
const CALM = 10_000
/** Growth of the speed that a connection must bring. */
const WORTH = 1.1
/** Connections at first: few for a server, and enough where each of them is limited. */
const FIRST = 4

/** How many connections a server gets: more as long as that is faster, half as many when it complains. */
export class ConnectionCount {
  readonly #most: number
  #limit: number
  #windowStart: number | undefined
  #windowBytes = 0
  /** Of one connection less, while the newest one is on trial. */
  #speedBefore: number | undefined
  #waitUntil = 0
  #calmUntil = 0
  /** What bytes have come since, in all. */
  #bytes = 0

  constructor(most: number) {
    this.#most = most
    this.#limit = Math.min(FIRST, most)
  }

  get limit(): number {
    return this.#limit
  }

  add(bytes: number): void {
    this.#bytes += bytes
  }

  /**
   * To be called often.
   * @param delivering connections from which bytes come
   * @param wanted connections that there is work for
   */
  tick(now: number, delivering: number, wanted: number): void {
    // Speed says something only while all connections deliver.
    if (this.#windowStart === undefined || delivering < this.#limit || now < this.#waitUntil) {
      this.#restart(now)
      return
    }
    if (now - this.#windowStart < WINDOW) return
    const speed = ((this.#bytes - this.#windowBytes) * 1000) / (now - this.#windowStart)
    this.#restart(now)
    if (this.#speedBefore !== undefined && speed < this.#speedBefore * WORTH) {
      // The newest one brought nothing, and is given back.
      this.#limit -= 1
      this.#speedBefore = undefined
      this.#waitUntil = now + TRY_AGAIN
      return
    }
    this.#speedBefore = undefined
    if (this.#limit >= this.#most || wanted <= this.#limit) return
    this.#speedBefore = speed
    this.#limit += 1
  }

  /** The server answered that it is too much. */
  trouble(now: number): void {
    // Connections that were refused together count once.
    if (now < this.#calmUntil - CALM + 1000) return
    this.#limit = Math.max(1, Math.floor(this.#limit / 2))
    this.#speedBefore = undefined
    this.#calmUntil = now + CALM
    this.#waitUntil = this.#calmUntil
  }

  #restart(now: number): void {
    this.#windowStart = now
    this.#windowBytes = this.#bytes
  }
}
