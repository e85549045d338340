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

/**
 * What is wrong with it as an address beside the server's own; undefined where nothing is.
 * @param address what `parseListen` makes of the text
 */
export function listenFault(text: string, address: ListenAddress | undefined, ownPort: number): string | undefined {
  if (text === '') return undefined
  if (!address) return `${JSON.stringify(text)} is no address with a port such as 127.0.0.1:11434.`
  if (address.port === 0 || address.port !== ownPort) return undefined
  return `Port ${ownPort} is the server's own, which serves Ollama's clients below /ollama. Choose another one, such as 11434.`
}
