import type { LookupFunction } from 'node:net'
import type { Dispatcher } from 'undici'
import { isLoopback } from './private-address.ts'

/** Milliseconds; 0 is unlimited. */
export interface ConnectionLimits {
  /** `lookup` resolves the names of servers that are connected to directly. */
  connect: { timeout: number; lookup?: LookupFunction }
  headersTimeout: number
  bodyTimeout: number
  /** Maximum time an unused connection is kept, whatever its server asks for. */
  keepAliveMaxTimeout?: number
}

export interface ServerConnections {
  to(url: URL): Dispatcher
  close(): Promise<void>
}

/** Opens connections, through a proxy (empty for none) or the environment's, except to this machine itself. */
export async function openConnections(proxy: string | undefined, limits: ConnectionLimits): Promise<ServerConnections> {
  // Loaded with the first request, because a start needs none.
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

export const hasProxy = (env: NodeJS.ProcessEnv): boolean =>
  ['https_proxy', 'HTTPS_PROXY', 'http_proxy', 'HTTP_PROXY'].some(name => env[name])

export const isTrue = (value: string | undefined) => /^(1|on|yes|true)$/i.test(value ?? '')

/** Returns the variable that forbids requests, as in Hugging Face's own client. */
export function offlineVariable(env: NodeJS.ProcessEnv): string | undefined {
  return ['HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'].find(name => isTrue(env[name]))
}
