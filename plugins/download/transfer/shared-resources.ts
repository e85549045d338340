import type { Digests } from './digests.ts'
import type { ConnectionPool } from './http/http-client.ts'
import { WRITE_SIZE } from './part-file.ts'

/** What the transfers of all files share. */
export interface SharedResources {
  readonly connectionsPerFile: number
  readonly stallTimeout: number
  /** Longest first back-off, in milliseconds. */
  readonly firstDelay: number
  readonly connections: ConnectionPool
  readonly bandwidth: Bandwidth
  readonly digests: Digests
  readonly buffers: Buffers
  /** A connection may be started, or has ended. */
  changed(): void
  received(host: string | undefined, bytes: number): void
  /** The server refuses this many connections. */
  overloaded(host: string): void
  log(message: string): void
}

/** A pool of the memory that requests read into. */
export class Buffers {
  readonly #free: Buffer[] = []

  take(): Buffer {
    return this.#free.pop() ?? Buffer.allocUnsafeSlow(WRITE_SIZE)
  }

  give(buffer: Buffer): void {
    this.#free.push(buffer)
  }
}

/** Milliseconds over which speed is measured before a connection is added. */
const MEASURING_TIME = 100
/** Milliseconds until the next trial, after an added connection made nothing faster. */
const TRIAL_INTERVAL = 5000
/** Milliseconds for which no connection is added after a server refused some. */
const COOL_DOWN = 10_000
/** Factor by which an added connection must raise the speed. */
const REQUIRED_GAIN = 1.1
/** Connections at first: no burden to a server, and enough where each of them is limited. */
const INITIAL = 4

/** How many connections a server gets: one more as long as that is faster, half as many when it refuses some. */
export class ConnectionCount {
  readonly #most: number
  #limit: number
  #windowStart: number | undefined
  #windowBytes = 0
  /** Speed without the newest connection, while that is on trial. */
  #speedBefore: number | undefined
  #waitUntil = 0
  #coolingUntil = 0
  /** Bytes received in all. */
  #bytes = 0

  constructor(most: number) {
    this.#most = most
    this.#limit = Math.min(INITIAL, most)
  }

  get limit(): number {
    return this.#limit
  }

  add(bytes: number): void {
    this.#bytes += bytes
  }

  /**
   * Called often.
   * @param delivering connections that receive bytes
   * @param wanted connections that there is work for
   */
  tick(now: number, delivering: number, wanted: number): void {
    // The speed is only comparable while all connections deliver.
    if (this.#windowStart === undefined || delivering < this.#limit || now < this.#waitUntil) {
      this.#restart(now)
      return
    }
    if (now - this.#windowStart < MEASURING_TIME) return
    const speed = ((this.#bytes - this.#windowBytes) * 1000) / (now - this.#windowStart)
    this.#restart(now)
    if (this.#speedBefore !== undefined && speed < this.#speedBefore * REQUIRED_GAIN) {
      // The newest connection made nothing faster: give it up.
      this.#limit -= 1
      this.#speedBefore = undefined
      this.#waitUntil = now + TRIAL_INTERVAL
      return
    }
    this.#speedBefore = undefined
    if (this.#limit >= this.#most || wanted <= this.#limit) return
    this.#speedBefore = speed
    this.#limit += 1
  }

  /** The server refused connections or requests as too many. */
  overloaded(now: number): void {
    // Several refusals at the same time count as one.
    if (now < this.#coolingUntil - COOL_DOWN + 1000) return
    this.#limit = Math.max(1, Math.floor(this.#limit / 2))
    this.#speedBefore = undefined
    this.#coolingUntil = now + COOL_DOWN
    this.#waitUntil = this.#coolingUntil
  }

  #restart(now: number): void {
    this.#windowStart = now
    this.#windowBytes = this.#bytes
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
