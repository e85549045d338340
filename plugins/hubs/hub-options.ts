import { readFile } from 'node:fs/promises'
import { type Static, Type } from 'typebox'
import { Timeout } from '../../core/config/core-schema.ts'
import { CorralError, isSystemError, messageOf } from '../../core/errors.ts'
import type { PluginContext } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { createEndpoints } from './http/endpoints.ts'
import { createHubFetch, type Headers, type HubFetch } from './http/hub-fetch.ts'

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

/** Where a token may stand, in this order. */
export interface TokenSources {
  setting: string
  /** Environment variables. */
  variables: readonly string[]
  /** The file of the hub's own client; undefined where it is not to be used. */
  file: string | undefined
}

/**
 * The token to use, read anew each time: a login counts from then on. Undefined where there is none.
 * @throws CorralError `hub_forbidden` when there is one that cannot be read or sent
 */
export async function findToken(sources: TokenSources, env: NodeJS.ProcessEnv): Promise<string | undefined> {
  if (sources.setting) return sources.setting
  for (const variable of sources.variables) {
    const token = env[variable]?.trim()
    if (token) return checked(token, `The token in ${variable}`)
  }
  if (sources.file === undefined) return undefined
  try {
    const token = (await readFile(sources.file, 'utf8')).trim()
    return token ? checked(token, `The token in ${sources.file}`) : undefined
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    if (error instanceof CorralError) throw error
    throw new CorralError(
      'hub_forbidden',
      `The token in ${sources.file} cannot be read (${messageOf(error)}). Make it readable, or set the token in config.yaml.`,
      { cause: error }
    )
  }
}

function checked(token: string, where: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new CorralError('hub_forbidden', `${where} holds characters that no token has. Set it anew.`)
}

/** The header that carries a token. */
export function bearer(token: string | undefined): Record<string, string> | undefined {
  return token === undefined ? undefined : { authorization: `Bearer ${token}` }
}
