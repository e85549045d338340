import { readFile } from 'node:fs/promises'
import { type Static, Type } from 'typebox'
import { Timeout } from '../../../core/config/core-schema.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import type { PluginContext } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { createEndpoints, type SendToHub } from './http/endpoints.ts'
import { createHubFetch, type Headers, type HubFetch } from './http/hub-fetch.ts'

const ADDRESS = { pattern: '^(https?://[^\\s@?#]+)?$', title: 'an address such as https://example.org' }

/** Settings for connections to a hub. */
export const connectionOptions = {
  proxy: Type.String({
    default: '',
    pattern: '^(https?://\\S+)?$',
    title: 'an address such as http://proxy:3128',
    writeOnly: true,
    needsTrust: true,
    description: 'Proxy to go through; empty uses HTTPS_PROXY, HTTP_PROXY and NO_PROXY'
  }),
  connect_timeout: Timeout({ default: '10s', description: 'How long to wait for a connection' })
}

/** Settings for the address of a hub and its token, with what describes them. */
export function serverOptions(endpoint: string, token: string) {
  return {
    endpoint: Type.String({ default: '', ...ADDRESS, needsTrust: true, description: endpoint }),
    token: Type.String({
      default: '',
      pattern: '^[\\x21-\\x7e]*$',
      title: 'a text without spaces',
      writeOnly: true,
      description: token
    })
  }
}

type ConnectionOptions = { [Name in keyof typeof connectionOptions]: Static<(typeof connectionOptions)[Name]> }

/** The HTTP client of one hub. */
export function hubFetch(title: string, options: ConnectionOptions, context: PluginContext): HubFetch {
  return createHubFetch(title, options.proxy, parseDuration(options.connect_timeout)!, context.signal)
}

/** An address that paths can be appended to. */
export function withoutSlash(address: string): string {
  return address.replace(/\/+$/, '')
}

/** A public hub. */
export interface PublicHub {
  title: string
  /** Its usual address, without a slash at the end. */
  usual: string
  /** Environment variable with another address, as the hub's own client reads it. */
  variable: string
  /** Its own hosts, which get the token. */
  hosts: readonly string[]
  /** Headers with the token; undefined without one. */
  credentials(): Promise<Headers | undefined>
}

/** How a public hub is reached. */
export interface HubAccess {
  /** Without a slash at the end. */
  endpoint: string
  /** Name of the hub for messages, with its address where that is not the usual one. */
  title: string
  send: SendToHub
}

/** The section of a public hub in `config.yaml`. @param token where the token comes from when the setting is empty */
export function publicHubOptions({ usual, variable }: Pick<PublicHub, 'usual' | 'variable'>, token: string) {
  return Type.Object(
    {
      ...serverOptions(
        `Address of the hub; empty uses ${variable}, or else ${usual}`,
        `Access token; empty uses ${token}`
      ),
      mirrors: Type.Array(Type.String({ minLength: 1, ...ADDRESS }), {
        default: [],
        description:
          'Addresses with the same content, tried in order when the endpoint cannot be reached; no token is sent to them'
      }),
      ...connectionOptions
    },
    { additionalProperties: false, restart: true }
  )
}

/** Another address than the usual one is logged, since models are trusted for where they come from. */
export function publicHubAccess(
  context: PluginContext,
  options: Static<ReturnType<typeof publicHubOptions>>,
  hub: PublicHub
): HubAccess {
  const endpoint = endpointOf(options.endpoint, hub.variable, hub.usual, process.env)
  if (endpoint !== hub.usual) context.log.info(`${hub.title} is used at ${endpoint}.`)
  const title = endpoint === hub.usual ? hub.title : `${hub.title} at ${endpoint}`
  const mirrors = options.mirrors.map(withoutSlash)
  // Another server has a token of its own.
  const trustedHosts = hub.hosts.includes(new URL(endpoint).host) ? hub.hosts : []
  const fetch = hubFetch(title, options, context)
  const send = createEndpoints(fetch, endpoint, hub.usual, mirrors, trustedHosts, () => hub.credentials())
  return { endpoint, title, send }
}

/**
 * The address of a hub, without a slash at the end: the setting, else the environment variable, else the usual address.
 * A variable without `https://` is taken for a host.
 * @throws Error when the variable is not an address
 */
export function endpointOf(setting: string, variable: string, usual: string, env: NodeJS.ProcessEnv): string {
  const named = setting || env[variable]?.trim() || usual
  const text = named.includes('://') ? named : `https://${named}`
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.search || url.hash) {
    throw new Error(`${variable} is not the address of a hub, such as ${usual}`)
  }
  return withoutSlash(url.href)
}

/**
 * Reads the token each time, so that a new login takes effect at once. Undefined where there is none.
 * @param sources where to look for it: the setting, then environment variables, then the file of the hub's own client
 * @throws CorralError `hub_forbidden` when it cannot be read or sent
 */
export async function findToken(
  { setting, variables, file }: { setting: string; variables: readonly string[]; file?: string | undefined },
  env: NodeJS.ProcessEnv
): Promise<string | undefined> {
  if (setting) return setting
  const variable = variables.find(name => env[name]?.trim())
  if (variable) return checked(env[variable]!.trim(), variable)
  if (file === undefined) return undefined
  try {
    const token = (await readFile(file, 'utf8')).trim()
    return token ? checked(token, file) : undefined
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    if (error instanceof CorralError) throw error
    throw new CorralError(
      'hub_forbidden',
      `The token in ${file} cannot be read (${errorMessage(error)}). Make it readable, or set the token in config.yaml.`,
      { cause: error }
    )
  }
}

function checked(token: string, where: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new CorralError('hub_forbidden', `The token in ${where} contains characters that no token has. Set it again.`)
}

/** The header that carries a token. */
export function bearer(token: string | undefined): Record<string, string> | undefined {
  return token === undefined ? undefined : { authorization: `Bearer ${token}` }
}
