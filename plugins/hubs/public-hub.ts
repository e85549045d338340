import { type Static, Type } from 'typebox'
import type { PluginContext } from '../../core/plugins/plugin.ts'
import { createEndpoints } from './http/endpoints.ts'
import type { Headers } from './http/retry-delay.ts'
import { connectionOptions, hubFetch, mirrorOptions, serverOptions, withoutSlash } from './hub-options.ts'

/** What is known of a hub that everybody can reach. */
export interface PublicHub {
  title: string
  /** Where it is, without a slash at the end. */
  usual: string
  /** Variable of the ecosystem that says where it is instead. */
  variable: string
  /** Its own hosts, which share a token. */
  hosts: readonly string[]
  /** Headers with the token; undefined where there is none. */
  credentials(): Promise<Headers | undefined>
}

/** The section of such a hub in `config.yaml`. @param token where the token comes from when the setting is empty */
export function publicHubOptions({ usual, variable }: Pick<PublicHub, 'usual' | 'variable'>, token: string) {
  return Type.Object(
    {
      ...serverOptions({
        endpoint: `Address of the hub; empty is ${variable}, else ${usual}`,
        token: `Access token; empty is ${token}`
      }),
      ...mirrorOptions,
      ...connectionOptions
    },
    { additionalProperties: false }
  )
}

/**
 * Opens the way to a hub: where it is, how it is called in messages, and how it is asked. Which server stands in for it
 * is logged, since models are trusted for where they come from.
 */
export function openPublicHub(
  context: PluginContext,
  options: Static<ReturnType<typeof publicHubOptions>>,
  hub: PublicHub
) {
  const endpoint = endpointOf(options.endpoint, hub.variable, hub.usual, process.env)
  if (endpoint !== hub.usual) context.log.info(`${hub.title} is asked at ${endpoint}.`)
  const title = endpoint === hub.usual ? hub.title : `${hub.title} at ${endpoint}`
  const ask = createEndpoints({
    fetch: hubFetch(title, options, context),
    endpoint,
    mirrors: options.mirrors.map(withoutSlash),
    // A server in the hub's place has a token of its own.
    trustedHosts: hub.hosts.includes(new URL(endpoint).host) ? hub.hosts : [],
    credentials: hub.credentials
  })
  return { endpoint, title, ask }
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
