import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { checkRedirect, MAX_REDIRECTS } from '../../../../core/system/redirects.ts'
import { ConnectionPool, fetchBytes } from './http-connection.ts'
import { ConnectionFailure } from './http-socket.ts'

/** A location is not used in the last minute before it expires. */
const EXPIRY_MARGIN_MS = 60_000
const MAX_FAILURES = 2

/** A location in use: the address after redirects, and how often it failed. */
export interface ActiveLocation {
  url: URL
  headers: Record<string, string>
  readonly reported: FileLocation
  redirects: number
  failures: number
}

export function requestTarget({ url, headers, reported: { proxy, privateAddresses, tls } }: ActiveLocation) {
  return { url, headers, proxy, privateAddresses, tls }
}

/** The current location of a file, shared by its connections and requested again when it fails. */
export class FileSource {
  readonly #locate: () => Promise<FileLocation>
  #location: ActiveLocation | undefined
  #pending: Promise<ActiveLocation> | undefined

  constructor(locate: () => Promise<FileLocation>) {
    this.#locate = locate
  }

  /** Host and port, for the number of connections. Undefined while unknown. */
  get host(): string | undefined {
    return this.#location?.url.host
  }

  async current(): Promise<ActiveLocation> {
    const location = this.#location
    const expiresAt = location?.reported.expiresAt
    if (location && (expiresAt === undefined || expiresAt - EXPIRY_MARGIN_MS > Date.now())) return location
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

  /** Makes the next request ask the hub for a new location. @returns false if this one was already replaced */
  drop(location = this.#location): boolean {
    if (this.#location !== location) return false
    this.#location = undefined
    return true
  }

  failed(location: ActiveLocation): void {
    location.failures += 1
    if (location.failures >= MAX_FAILURES) this.drop(location)
  }
}

/** Follows a redirect for all later requests, without credentials to another host. @returns why not, or undefined */
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

/** The keys that describe a model come before its vocabulary, within some kB. */
const MAX_START_BYTES = 256 * 1024
const TIMEOUT_MS = 15_000

/** Reads the first bytes of a file. Returns fewer, or none, if the server does not send them in time. */
export async function readFileStart(
  locate: () => Promise<FileLocation>,
  size: number | undefined,
  signal: AbortSignal
): Promise<Buffer> {
  const connections = new ConnectionPool()
  const bytes = Buffer.alloc(Math.min(MAX_START_BYTES, size ?? MAX_START_BYTES))
  let filled = 0
  const sink = {
    room: () => bytes.subarray(filled),
    onBytes: (length: number) => {
      filled += length
      return filled < bytes.length
    }
  }
  try {
    const location = await new FileSource(locate).current()
    for (let isRedirected = bytes.length > 0; isRedirected; ) {
      const { answer } = await fetchBytes(connections, requestTarget(location), {
        start: 0,
        end: bytes.length,
        size,
        onAnswer: ({ kind }) => (kind === 'range' || kind === 'whole' ? sink : undefined),
        signal: AbortSignal.any([signal, abortAfter(TIMEOUT_MS)]),
        stallTimeout: TIMEOUT_MS
      })
      isRedirected = answer.kind === 'redirect' && followRedirect(location, answer.to) === undefined
    }
  } catch (error) {
    signal.throwIfAborted()
    const isRemote = error instanceof ConnectionFailure || error instanceof CorralError
    if (!isRemote && !(error instanceof DOMException)) throw error
  } finally {
    connections.close()
  }
  return bytes.subarray(0, filled)
}
