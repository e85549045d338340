import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import { Duration } from '../../core/config/core-schema.ts'
import { parseDuration } from '../../core/duration.ts'
import type { PluginContext } from '../../core/plugin.ts'
import { createHubFetch } from './http/hub-fetch.ts'

const ADDRESS = { pattern: '^(https?://[^\\s@?#]+)?$', title: 'an address such as https://example.org' }

/** How a hub is reached, besides where and as whom. */
export const connectionOptions = {
  proxy: Type.String({
    default: '',
    pattern: '^(https?://\\S+)?$',
    title: 'an address such as http://proxy:3128',
    writeOnly: true,
    description: 'Proxy to go through; empty is the one that HTTPS_PROXY, HTTP_PROXY and NO_PROXY say'
  }),
  connect_timeout: Duration({ default: '10s', description: 'How long to wait for a connection' })
}

/** Where a hub is, and the token for it. */
export function serverOptions(says: { endpoint: string; token: string }) {
  return {
    endpoint: Type.String({ default: '', ...ADDRESS, description: says.endpoint }),
    token: Type.String({
      default: '',
      pattern: '^[\\x21-\\x7e]*$',
      title: 'a text without spaces',
      writeOnly: true,
      description: says.token
    })
  }
}

/** Servers to turn to when the endpoint is out of reach. */
export const mirrorOptions = {
  mirrors: Type.Array(Type.String({ minLength: 1, ...ADDRESS }), {
    default: [],
    description:
      'Addresses with the same content, tried in order when the endpoint cannot be reached; they get no token'
  })
}

const connectionSchema = Type.Object(connectionOptions)

/** The connections of one hub, by its settings. */
export function hubFetch(title: string, options: Static<typeof connectionSchema>, context: PluginContext) {
  return createHubFetch({
    title,
    proxy: options.proxy,
    connectTimeout: parseDuration(options.connect_timeout)!,
    signal: context.signal
  })
}

/**
 * Where a hub is: the setting, else the ecosystem's variable, else the usual place; without a slash at the end. A
 * variable without `https://` is taken for a host.
 * @throws Error when the variable is no address
 */
export function endpointOf(setting: string, variable: string, usual: string, env: NodeJS.ProcessEnv): string {
  const named = setting || env[variable]?.trim() || usual
  const text = named.includes('://') ? named : `https://${named}`
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.search || url.hash) {
    throw new Error(`${variable} is no address of a hub such as ${usual}`)
  }
  return withoutSlash(url.href)
}

/** An address that paths can be put behind. */
export function withoutSlash(address: string): string {
  return address.replace(/\/+$/, '')
}

/** A hub's name in messages, with its address where that is not the usual one. */
export function titleAt(title: string, endpoint: string, usual: string): string {
  return endpoint === usual ? title : `${title} at ${endpoint}`
}

/** The hosts of one hub, where its endpoint is one of them: else its token is not for them. */
export function hostsWith(endpoint: string, hosts: readonly string[]): readonly string[] {
  return hosts.includes(new URL(endpoint).host) ? hosts : []
}

/** Logs which server stands in for a hub, since models are trusted for where they come from. */
export function logEndpoint(log: FastifyBaseLogger, title: string, endpoint: string, usual: string): void {
  if (endpoint !== usual) log.info(`${title} is asked at ${endpoint}.`)
}
