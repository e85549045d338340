import { BlockList, isIP } from 'node:net'
import { CorralError } from '../../../core/errors.ts'

/* Checks whether a request was meant for this server (`Host`), and whether its page may use it (`Origin`). */

/** A host name, or an IPv6 address without brackets. */
export const HOST_PATTERN = '^([^\\s:/?#@\\[\\]\\\\]+|[0-9A-Fa-f:.]+)$'

/** An entry of `origins` is `*`, `null`, or `scheme://host[:port]` where `*` matches any characters of a host. */
export const ORIGIN_PATTERN = '^(\\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\\s/?#@\\\\]+)$'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8)
LOOPBACK.addAddress('::1', 'ipv6')

/**
 * Whether a host, without port and brackets, is a loopback host: `localhost`, `*.localhost`, 127.0.0.0/8, `::1` or its
 * IPv4-mapped form. Only complete addresses match (`127.1` does not), and names are not resolved.
 */
export function isLoopbackHost(host: string): boolean {
  const version = isIP(host)
  if (version === 4) return host.startsWith('127.')
  // A zone (`::1%lo`) is for connecting and must not appear in a name that others use.
  if (version === 6) return !host.includes('%') && LOOPBACK.check(host, 'ipv6')
  const name = nameKey(host)
  return name === 'localhost' || /^([a-z0-9_-]+\.)+localhost$/.test(name)
}

/** Returns the host of a `Host` header without port and brackets, or undefined if it is malformed. */
export function hostOf(header: string): string | undefined {
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@[\]\\]+))(?::\d{1,5})?$/.exec(header)
  return match?.[1] ?? match?.[2]
}

/** Normalizes a host name: lower case, without the trailing dot. */
export function nameKey(name: string): string {
  return name.toLowerCase().replace(/\.$/, '')
}

/**
 * Whether a `Host` header names this machine. A foreign name that resolves to this machine is refused (DNS rebinding).
 * @param header undefined without the header (HTTP/1.0)
 * @param names this machine's host names and the configured ones, normalized by `nameKey`
 * @param addresses whether any IP address is accepted: a DNS rebinding attack always uses a name, and a page loaded
 * from an address is this server's own page
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

/** Schemes of desktop applications that show their own pages. */
const APPLICATION_SCHEMES = new Set(['app', 'tauri', 'vscode-webview'])
const DEFAULT_PORTS: Record<string, string> = { http: '80', https: '443' }

/** Whether an origin is allowed by an entry of `origins`. */
export type OriginPattern = (origin: string) => boolean

/**
 * Parses an entry of `origins`. In a host, `*` matches one or more characters including dots: `https://*.example.org`
 * covers all subdomains but not example.org. As a port it matches any port.
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

/** Whether pages of this origin may use the server. @param header the `Origin`, if a page sent the request */
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
 * Whether a request without `Origin` is allowed, judged by its `Sec-Fetch-Site`. Browsers omit `Origin` for images,
 * frames and links of any site, and for fetches of a page from its own server. Other programs send neither header.
 * @param isPublic whether the route is for anyone and read-only, such as the server's page, which other sites may link
 * to
 */
export function siteAllowed(header: string | undefined, isPublic: boolean): boolean {
  return isPublic || header === undefined || header === 'same-origin' || header === 'none'
}

/** Whether a page of this origin was loaded from the server that the request goes to. */
function isSameOrigin(origin: string, host: string | undefined): boolean {
  const [, scheme, authority] = /^(https?):\/\/([^\s/?#@\\]+)$/i.exec(origin) ?? []
  if (scheme === undefined || host === undefined) return false
  return withPort(authority!, scheme.toLowerCase()) === withPort(host, scheme.toLowerCase())
}

/** Refuses pages of other origins: sessions are for the server's own page. @throws CorralError `origin_not_allowed` */
export function requireSameOrigin(origin: string, host: string | undefined): void {
  if (isSameOrigin(origin, host)) return
  const message = `Pages from ${quoted(origin)} cannot have a session here: sessions are for the server's own page. Use an API key there. A proxy must pass on the Host header.`
  throw new CorralError('origin_not_allowed', message)
}

/** Quotes a header for an error message and truncates it if it is long. */
export function quoted(header: string | undefined): string {
  const text = header ?? ''
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
}

function withPort(authority: string, scheme: string): string {
  const text = authority.toLowerCase()
  return /:\d+$/.test(text) ? text : `${text}:${DEFAULT_PORTS[scheme]}`
}
