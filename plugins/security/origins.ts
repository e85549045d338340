import { hostOf, isLoopbackHost } from './addresses.ts'

/** Schemes of local applications that show pages of their own. */
const APPLICATION_SCHEMES = new Set(['app', 'tauri', 'vscode-webview'])
const DEFAULT_PORTS: Record<string, string> = { http: '80', https: '443' }

/** Tells whether an origin was configured as allowed. */
export type OriginPattern = (origin: string) => boolean

/** An entry of `origins` must be `*`, `null`, or `scheme://host[:port]` where `*` stands for any letters of a host. */
export const ORIGIN_PATTERN = '^(\\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\\s/?#@\\\\]+)$'

/**
 * Reads an entry of `origins`. In a host `*` stands for at least one character, dots included: `https://*.example.org`
 * is all names below it, not itself. As a port it is any port.
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
  return isLoopbackHost(name) || (host !== undefined && withPort(authority, scheme) === withPort(host, scheme))
}

function withPort(authority: string, scheme: string): string {
  const text = authority.toLowerCase()
  return /:\d+$/.test(text) ? text : `${text}:${DEFAULT_PORTS[scheme]}`
}
