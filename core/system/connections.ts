import type { LookupFunction } from 'node:net'
import type { Dispatcher } from 'undici'
import { isLoopback } from './private-address.ts'

/** Milliseconds; 0 is no limit. */
export interface ConnectionLimits {
  /** `lookup` finds the addresses of servers that are connected to directly. */
  connect: { timeout: number; lookup?: LookupFunction }
  headersTimeout: number
  bodyTimeout: number
  /** Longest time for which an unused connection is kept, whatever its server wishes. */
  keepAliveMaxTimeout?: number
}

/** Connections to servers, kept open for the next request. */
export interface ServerConnections {
  to(url: URL): Dispatcher
  /** Cuts all connections. */
  close(): Promise<void>
}

/**
 * Opens connections to servers: through a proxy, or through those that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name where
 * none is given; to this machine itself the environment's are passed by, since a proxy of the network cannot reach it.
 * @param proxy an address; empty is none at all
 */
export async function openConnections(proxy: string | undefined, limits: ConnectionLimits): Promise<ServerConnections> {
  // Loaded with the first request: a start needs none.
  const { Agent, EnvHttpProxyAgent, ProxyAgent } = await import('undici')
  const direct = new Agent(limits)
  // Tunnels are for TLS: many proxies refuse them to other ports.
  const passing = { ...limits, proxyTunnel: false }
  const proxied =
    proxy === undefined
      ? new EnvHttpProxyAgent(passing)
      : proxy === ''
        ? direct
        : new ProxyAgent({ uri: proxy, ...passing })
  return {
    to: url => (proxy === undefined && isLoopback(url.hostname) ? direct : proxied),
    close: async () => {
      await Promise.all([direct.destroy(), proxied.destroy()])
    }
  }
}
