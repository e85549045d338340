import { BlockList, isIP } from 'node:net'
import { CorralError } from '../../../core/errors.ts'

/*
 * Whether a request was meant for this server, and by a page that may use it: the `Host` and `Origin` headers.
 */

/** A host name, or an IPv6 address without brackets. */
export const HOST_PATTERN = '^([^\\s:/?#@\\[\\]\\\\]+|[0-9A-Fa-f:.]+)$'

/** An entry of `origins` must be `*`, `null`, or `scheme://host[:port]` where `*` matches any characters of a host. */
export const ORIGIN_PATTERN = '^(\\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\\s/?#@\\\\]+)$'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8)
LOOPBACK.addAddress('::1', 'ipv6')

/**
 * Whether a host, without port and brackets, is this machine's loopback: `localhost`, `*.localhost`, 127.0.0.0/8, `::1`
 * and its IPv4-mapped form. Only whole addresses count (`127.1` does not), and names are not looked up.
 */
export function isLoopbackHost(host: string): boolean {
  const version = isIP(host)
  if (version === 4) return host.startsWith('127.')
  // A zone (`::1%lo`) is for connecting and has no place in a name that others use.
  if (version === 6) return !host.includes('%') && LOOPBACK.check(host, 'ipv6')
  const name = nameKey(host)
  return name === 'localhost' || /^([a-z0-9_-]+\.)+localhost$/.test(name)
}

/** The host of a `Host` header, without port and brackets; undefined when it is malformed. */
export function hostOf(header: string): string | undefined {
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@[\]\\]+))(?::\d{1,5})?$/.exec(header)
  return match?.[1] ?? match?.[2]
}

/** What two spellings of one host name share: case and the dot of the root do not count. */
export function nameKey(name: string): string {
  return name.toLowerCase().replace(/\.$/, '')
}

/**
 * Whether a `Host` header names this machine, so that the request was not sent to it through a foreign name that was
 * pointed here (DNS rebinding).
 * @param header undefined where there is none (HTTP/1.0)
 * @param names this machine's own host names and those that were configured, normalized by `nameKey`
 * @param addresses whether an address will do, of whatever interface: a page of a stranger has a name that was pointed
 *   here, and where its address is in the place of the name, it is this server's own page
 */
export function hostAllowed(
  header: string | undefined,
  names: ReadonlySet<string>,
  { addresses = false }: { addresses?: boolean } = {}
): boolean {
  if (header === undefined) return true
  const host = hostOf(header)
  if (host === undefined) return false
  return isLoopbackHost(host) || names.has(nameKey(host)) || (addresses && isIP(host) !== 0)
}

/** Schemes of local applications that show pages of their own. */
const APPLICATION_SCHEMES = new Set(['app', 'tauri', 'vscode-webview'])
const DEFAULT_PORTS: Record<string, string> = { http: '80', https: '443' }

/** Tells whether an origin was configured as allowed. */
export type OriginPattern = (origin: string) => boolean

/**
 * Reads an entry of `origins`. In a host `*` matches at least one character, dots included: `https://*.example.org`
 * is all names below it, not itself. As a port it matches any port.
 */
export function originPattern(entry: string): OriginPattern {
  if (entry === '*') return () => true
  const source = entry
    .toLowerCase()
    .replace(/[.+?^${}()|[\]\\]/g, '\\$&')
    .replace(/:\*$/, '(:[0-9]+)?')
    .replaceAll('*', '[a-z0-9._-]+')
  const pattern = new RegExp(`^${source}$`)
  return origin => pattern.test(origin.toLowerCase())
}

/**
 * Whether pages of this origin may use the server.
 * @param header the `Origin` header; undefined where there is none: no page of a browser sent the request
 * @param host the `Host` header
 */
export function originAllowed(
  header: string | undefined,
  host: string | undefined,
  configured: readonly OriginPattern[]
): boolean {
  if (header === undefined) return true
  if (configured.some(matches => matches(header))) return true
  const match = /^([a-z][a-z0-9+.-]*):\/\/([^\s/?#@\\]*)$/i.exec(header)
  if (!match) return false
  const scheme = match[1]!.toLowerCase()
  const authority = match[2]!
  if (APPLICATION_SCHEMES.has(scheme)) return true
  if (!(scheme in DEFAULT_PORTS)) return false
  const name = hostOf(authority)
  if (name === undefined) return false
  return isLoopbackHost(name) || isSameOrigin(header, host)
}

/**
 * Whether a request without an `Origin` may come from a page, by its `Sec-Fetch-Site`: browsers leave `Origin` out of what
 * images, frames and links of any site fetch, and of what a page fetches from its own server. Other programs send neither.
 * @param isPublic whether the route is for anyone and only reads, such as the server's page: other sites may link to it
 */
export function siteAllowed(header: string | undefined, isPublic: boolean): boolean {
  return isPublic || header === undefined || header === 'same-origin' || header === 'none'
}

/** Whether a page of this origin came from where its request goes to. */
function isSameOrigin(origin: string, host: string | undefined): boolean {
  const [, scheme, authority] = /^(https?):\/\/([^\s/?#@\\]+)$/i.exec(origin) ?? []
  if (scheme === undefined || host === undefined) return false
  return withPort(authority!, scheme.toLowerCase()) === withPort(host, scheme.toLowerCase())
}

/**
 * Refuses what pages of other origins send, also of those that may use the server otherwise: sessions are for the
 * server's own page.
 * @throws CorralError `origin_not_allowed`
 */
export function requireSameOrigin(origin: string, host: string | undefined): void {
  if (isSameOrigin(origin, host)) return
  throw new CorralError(
    'origin_not_allowed',
    `Pages from ${quoted(origin)} may have no session here: sessions are for the server's own page. Use an API key there; a proxy must pass on the header Host.`
  )
}

/** A header for an error, cut where it is long. */
export function quoted(header: string | undefined): string {
  const text = header ?? ''
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
}

function withPort(authority: string, scheme: string): string {
  const text = authority.toLowerCase()
  return /:\d+$/.test(text) ? text : `${text}:${DEFAULT_PORTS[scheme]}`
}
