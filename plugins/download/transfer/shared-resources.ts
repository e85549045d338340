import type { Digests } from './digests.ts'
import type { Connections } from './http/http-client.ts'
import { GATHERED } from './part-file.ts'

/** What the transfers of all files share. */
export interface SharedResources {
  readonly connectionsPerFile: number
  readonly stallTimeout: number
  /** Milliseconds of the first back-off at most. */
  readonly firstDelay: number
  readonly connections: Connections
  readonly bandwidth: Bandwidth
  readonly digests: Digests
  readonly buffers: Buffers
  /** Something may be started, or is done. */
  changed(): void
  received(host: string | undefined, bytes: number): void
  /** A server has had enough. */
  trouble(host: string): void
  log(message: string): void
}

/** Memory that requests read into; used again and again. */
export class Buffers {
  readonly #free: Buffer[] = []

  take(): Buffer {
    return this.#free.pop() ?? Buffer.allocUnsafeSlow(GATHERED)
  }

  give(buffer: Buffer): void {
    this.#free.push(buffer)
  }
}

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
