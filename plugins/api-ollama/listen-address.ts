import { isIP } from 'node:net'

export interface ListenAddress {
  host: string
  port: number
}

/** An entry of `listen`: empty, or `host:port` with an IPv6 address in brackets. */
export const LISTEN_PATTERN = '^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5})?$'

/** Reads `host:port`; undefined for an empty text and what is no address. */
export function parseListen(text: string): ListenAddress | undefined {
  const match = /^(?:\[([^\]]+)\]|([A-Za-z0-9.-]+)):(\d+)$/.exec(text)
  if (!match) return undefined
  const [, ipv6, name] = match
  const port = Number(match[3])
  if (port > 65_535 || (ipv6 !== undefined && isIP(ipv6) !== 6)) return undefined
  return { host: (ipv6 ?? name)!, port }
}

/** As it stands in an address of the web. */
export function originOf({ host, port }: ListenAddress): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}
