import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { checkRedirect, MAX_REDIRECTS } from '../../../../core/system/redirects.ts'

/** Milliseconds before it expires at which a location is no longer used. */
const EXPIRY_MARGIN = 60_000
/** Failures of one location after which a new one is requested. */
const MAX_FAILURES = 2

/** A location in use: the address after redirects, and how often it failed. */
export interface ActiveLocation {
  url: URL
  headers: Record<string, string>
  /** What the hub reported. */
  readonly reported: FileLocation
  redirects: number
  failures: number
}

/** Where the bytes of one file come from: shared by its connections, requested again when it stops working. */
export class FileSource {
  readonly #locate: () => Promise<FileLocation>
  #location: ActiveLocation | undefined
  #pending: Promise<ActiveLocation> | undefined

  constructor(locate: () => Promise<FileLocation>) {
    this.#locate = locate
  }

  /** Host and port, for the number of connections; undefined while unknown. */
  get host(): string | undefined {
    return this.#location?.url.host
  }

  /** @throws what `locate` throws */
  async current(): Promise<ActiveLocation> {
    const location = this.#location
    const expiresAt = location?.reported.expiresAt
    if (location && (expiresAt === undefined || expiresAt - EXPIRY_MARGIN > Date.now())) return location
    this.#pending ??= this.#request().finally(() => {
      this.#pending = undefined
    })
    return await this.#pending
  }

  async #request(): Promise<ActiveLocation> {
    const reported = await this.#locate()
    const url = new URL(reported.url)
    this.#location = { url, headers: { ...reported.headers }, reported, redirects: 0, failures: 0 }
    return this.#location
  }

  /** A location no longer serves the file. @returns false when it was replaced already */
  drop(location: ActiveLocation): boolean {
    if (this.#location !== location) return false
    this.#location = undefined
    return true
  }

  /** The next request asks the hub for a new location. */
  renew(): void {
    this.#location = undefined
  }

  /** A request to a location failed. */
  failed(location: ActiveLocation): void {
    location.failures += 1
    if (location.failures >= MAX_FAILURES) this.drop(location)
  }
}

/**
 * Follows a redirect for all later requests. Credentials are not sent on to another host.
 * @returns why it cannot be followed; undefined when it is
 */
export function followRedirect(location: ActiveLocation, target: string | undefined): string | undefined {
  const redirect = checkRedirect(target, {
    start: new URL(location.reported.url),
    from: location.url,
    mayBePrivate: location.reported.privateAddresses !== undefined
  })
  if ('refused' in redirect) return redirect.refused
  if (++location.redirects > MAX_REDIRECTS) return `redirects more than ${MAX_REDIRECTS} times`
  if (redirect.foreign) {
    const secret = /^(authorization|cookie|proxy-authorization)$/i
    location.headers = Object.fromEntries(Object.entries(location.headers).filter(([name]) => !secret.test(name)))
  }
  location.url = redirect.to
  return undefined
}
