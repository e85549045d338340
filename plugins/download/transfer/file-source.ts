import type { FileLocation } from '../../../core/contracts/downloads.ts'

/** Milliseconds before its end at which a location is no longer used. */
const EARLY = 60_000
const MOST_REDIRECTS = 5
/** Failures at one location after which a fresh one is asked for. */
const FAILURES = 2

/** A location in use: where redirects have led, and how it behaves. */
export interface Spot {
  url: URL
  headers: Record<string, string>
  readonly location: FileLocation
  redirects: number
  failures: number
}

/** Where the bytes of one file are, shared by all its connections and asked anew when it stops working. */
export class Place {
  readonly #locate: () => Promise<FileLocation>
  readonly #now: () => number
  #spot: Spot | undefined
  #asked: Promise<Spot> | undefined

  /** @param now epoch milliseconds */
  constructor(locate: () => Promise<FileLocation>, now: () => number = Date.now) {
    this.#locate = locate
    this.#now = now
  }

  /** Host and port, for the number of connections; undefined while unknown. */
  get host(): string | undefined {
    return this.#spot?.url.host
  }

  /** @throws what `locate` throws */
  async spot(): Promise<Spot> {
    const spot = this.#spot
    if (spot && (spot.location.expiresAt === undefined || spot.location.expiresAt - EARLY > this.#now())) return spot
    this.#asked ??= this.#ask().finally(() => {
      this.#asked = undefined
    })
    return await this.#asked
  }

  async #ask(): Promise<Spot> {
    const location = await this.#locate()
    const url = new URL(location.url)
    this.#spot = { url, headers: { ...location.headers }, location, redirects: 0, failures: 0 }
    return this.#spot
  }

  /** It no longer serves the file; false when it was replaced already. */
  drop(spot: Spot): boolean {
    if (this.#spot !== spot) return false
    this.#spot = undefined
    return true
  }

  /** Whatever is in use now is asked for anew. */
  renew(): void {
    this.#spot = undefined
  }

  /** An exchange with it failed. */
  failed(spot: Spot): void {
    spot.failures += 1
    if (spot.failures >= FAILURES) this.drop(spot)
  }
}

/**
 * Follows a redirect for all requests to come. What proves who asks stays with the server that it is meant for.
 * @returns why it cannot be followed; undefined when it is
 */
export function follow(spot: Spot, target: string | undefined): string | undefined {
  if (target === undefined) return 'redirects to nowhere'
  let url: URL
  try {
    url = new URL(target, spot.url)
  } catch {
    return 'redirects to something that is no address'
  }
  if (url.protocol !== 'https:' && (url.protocol !== 'http:' || spot.url.protocol === 'https:')) {
    return 'redirects from https to an address that is not secure'
  }
  if (++spot.redirects > MOST_REDIRECTS) return `redirects more than ${MOST_REDIRECTS} times`
  if (url.host !== spot.url.host) {
    const secret = /^(authorization|cookie|proxy-authorization)$/i
    spot.headers = Object.fromEntries(Object.entries(spot.headers).filter(([name]) => !secret.test(name)))
  }
  spot.url = url
  return undefined
}
