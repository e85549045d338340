import { readFile } from 'node:fs/promises'
import { type Static, type TObject, Type } from 'typebox'
import { Timeout } from '../../../core/config/core-schema.ts'
import type { Hub } from '../../../core/contracts/hubs.ts'
import { CorralError, errorMessage, whenMissing } from '../../../core/errors.ts'
import { definePlugin, type PluginContext, type PluginDefinition } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { createEndpoints, createHubFetch, type Headers, type HubFetch } from './hub-fetch.ts'

const ADDRESS = { pattern: '^(https?://[^\\s@?#]+)?$', title: 'an address such as https://example.org' }

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

export function hubPlugin<Options extends TObject>(
  name: string,
  description: string,
  options: Options,
  create: (context: PluginContext, options: Static<Options>) => Hub
): PluginDefinition {
  return definePlugin({
    name,
    api: 1,
    description,
    needs: ['downloads'],
    optional: true,
    options,
    setup(context, settings: Static<Options>) {
      context.service('downloads').addHub(create(context, settings))
      return {}
    }
  })
}

export const hubFetch = (title: string, options: ConnectionOptions, context: PluginContext): HubFetch =>
  createHubFetch(title, options.proxy, parseDuration(options.connect_timeout)!, context.signal)

export const withoutSlash = (address: string): string => address.replace(/\/+$/, '')

interface PublicHub {
  title: string
  /** Its usual address, without a trailing slash. */
  usual: string
  /** Environment variable with another address, which the hub's own client also reads. */
  variable: string
  /** Its own hosts, which get the token. */
  hosts: readonly string[]
  tokens: TokenSources
  moreHeaders?(token: string): Headers
}

export type HubAccess = ReturnType<typeof publicHubAccess>

/** The section of a public hub in `config.yaml`. @param token source of the token if the setting is empty */
export function publicHubOptions({ usual, variable }: Pick<PublicHub, 'usual' | 'variable'>, token: string) {
  return Type.Object(
    {
      ...serverOptions(
        `Address of the hub; empty uses ${variable}, or ${usual} if that is not set`,
        `Access token; empty uses ${token}`
      ),
      mirrors: Type.Array(Type.String({ minLength: 1, ...ADDRESS }), {
        default: [],
        description:
          'Addresses with the same content, tried in order if the endpoint cannot be reached; no token is sent to them'
      }),
      ...connectionOptions
    },
    { additionalProperties: false, restart: true }
  )
}

export function publicHubAccess(
  context: PluginContext,
  options: Static<ReturnType<typeof publicHubOptions>>,
  hub: PublicHub
) {
  const endpoint = resolveEndpoint(options.endpoint, hub.variable, hub.usual, process.env)
  // Models are trusted for their origin, so another one is logged.
  if (endpoint !== hub.usual) context.log.info(`${hub.title} is used at ${endpoint}.`)
  // For messages.
  const title = endpoint === hub.usual ? hub.title : `${hub.title} at ${endpoint}`
  const mirrors = options.mirrors.map(withoutSlash)
  // Another server would have its own token.
  const trustedHosts = hub.hosts.includes(new URL(endpoint).host) ? hub.hosts : []
  const credentials = async () => {
    const token = await findToken(options.token, hub.tokens, process.env)
    return token === undefined ? undefined : { ...bearer(token), ...hub.moreHeaders?.(token) }
  }
  const fetch = hubFetch(title, options, context)
  return { endpoint, title, send: createEndpoints(fetch, endpoint, hub.usual, mirrors, trustedHosts, credentials) }
}

/** Returns a hub's address: the setting, otherwise the variable (may be only a host), otherwise the usual one. */
export function resolveEndpoint(setting: string, variable: string, usual: string, env: NodeJS.ProcessEnv): string {
  const named = setting || env[variable]?.trim() || usual
  const text = named.includes('://') ? named : `https://${named}`
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.search || url.hash) {
    throw new Error(`${variable} is not the address of a hub, such as ${usual}`)
  }
  return withoutSlash(url.href)
}

/** Where a hub's own client looks for a token: environment variables, then a file. */
interface TokenSources {
  variables: readonly string[]
  file?: string | undefined
}

/** Reads the token each time, so that a new login takes effect. @throws CorralError `hub_forbidden` */
export async function findToken(
  setting: string,
  { variables, file }: TokenSources,
  env: NodeJS.ProcessEnv
): Promise<string | undefined> {
  if (setting) return setting
  const variable = variables.find(name => env[name]?.trim())
  if (variable) return checkToken(env[variable]!.trim(), variable)
  if (file === undefined) return undefined
  const text = await readFile(file, 'utf8')
    .catch(whenMissing)
    .catch(cause => {
      throw new CorralError(
        'hub_forbidden',
        `The token in ${file} cannot be read (${errorMessage(cause)}). Make it readable, or set the token in config.yaml.`,
        { cause }
      )
    })
  const token = text?.trim()
  return token ? checkToken(token, file) : undefined
}

function checkToken(token: string, where: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new CorralError(
    'hub_forbidden',
    `The token in ${where} contains characters that are not allowed in a token. Set it again.`
  )
}

export const bearer = (token: string): Headers => ({ authorization: `Bearer ${token}` })
