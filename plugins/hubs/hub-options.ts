import { type Static, Type } from 'typebox'
import { Timeout } from '../../core/config/core-schema.ts'
import type { PluginContext } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createHubFetch, type HubFetch } from './http/hub-fetch.ts'

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
  connect_timeout: Timeout({ default: '10s', description: 'How long to wait for a connection' })
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

/**
 * The connections of one hub, by its settings. They are closed at the very end of corral, since downloads that are being
 * stopped may still ask.
 */
export function hubFetch(title: string, options: Static<typeof connectionSchema>, context: PluginContext): HubFetch {
  const fetch = createHubFetch({
    title,
    proxy: options.proxy,
    connectTimeout: parseDuration(options.connect_timeout)!,
    signal: context.signal
  })
  context.signal.addEventListener('abort', () => void fetch.close(), { once: true })
  return fetch
}

/** An address that paths can be put behind. */
export function withoutSlash(address: string): string {
  return address.replace(/\/+$/, '')
}
