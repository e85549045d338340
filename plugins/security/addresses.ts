import { BlockList, isIP } from 'node:net'

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8)
LOOPBACK.addAddress('::1', 'ipv6')

/**
 * Whether a host, without port and brackets, is this machine's loopback: `localhost`, `*.localhost`, 127.0.0.0/8, `::1`
 * and its IPv4-mapped form. Only whole addresses count (`127.1` does not), and names are not looked up.
 */
export function isLoopbackHost(host: string): boolean {
  const version = isIP(host)
  // A zone (`::1%lo`) is for connecting and has no place in a name that others use.
  if (version) return !host.includes('%') && LOOPBACK.check(host, version === 6 ? 'ipv6' : 'ipv4')
  const name = nameKey(host)
  return name === 'localhost' || /^([a-z0-9_-]+\.)+localhost$/.test(name)
}

/** The host of a `Host` header, without port and brackets; undefined when it is malformed. */
export function hostOf(header: string): string | undefined {
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@[\]\\]+))(?::\d{1,5})?$/.exec(header)
  return match?.[1] ?? match?.[2]
}

/** A host name, or an IPv6 address without brackets. */
export const HOST_PATTERN = '^([^\\s:/?#@\\[\\]\\\\]+|[0-9A-Fa-f:.]+)$'

/** What two spellings of one host name share: case and the dot of the root do not count. */
export function nameKey(name: string): string {
  return name.toLowerCase().replace(/\.$/, '')
}

/**
 * Whether a `Host` header names this machine, so that the request was not sent to it through a foreign name that was
 * pointed here (DNS rebinding).
 * @param header undefined where there is none (HTTP/1.0)
 * @param names this machine's own host names and those that were configured, as `nameKey` gives them
 */
export function hostAllowed(header: string | undefined, names: ReadonlySet<string>): boolean {
  if (header === undefined) return true
  const host = hostOf(header)
  return host !== undefined && (isLoopbackHost(host) || names.has(nameKey(host)))
}
