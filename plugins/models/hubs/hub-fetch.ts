import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, type TObject, Type } from 'typebox'
import { Timeout } from '../../../core/config/core-schema.ts'
import type { Hub } from '../../../core/contracts/hubs.ts'
import { CorralError, errorMessage, whenMissing } from '../../../core/errors.ts'
import { definePlugin, type PluginContext, type PluginDefinition } from '../../../core/plugins/plugin.ts'
import { allowedLookup, requireAllowedHost } from '../../../core/system/allowed-address.ts'
import { readBody } from '../../../core/system/bounded-body.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { hasProxy, openConnections, type ServerConnections } from '../../../core/system/connections.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { version } from '../../../core/system/package-info.ts'
import { checkRedirect, isRedirect, MAX_REDIRECTS, mayHaveCredentials } from '../../../core/system/redirects.ts'
import { retryAfterSeconds } from '../../../core/system/retry-after.ts'
import EXPLANATIONS from './connection-errors.json' with { type: 'json' }

/** Maximum wait for a response to begin, and maximum pause in it. */
const RESPONSE_TIMEOUT_MS = 20_000
/** Maximum response size: a listing of many thousand files has a few MB. */
const MAX_BODY_BYTES = 64 * 1024 * 1024
/** Maximum response size for a server that a client chose: it sends the listing of at most one model. */
const MAX_CHOSEN_BODY_BYTES = 1024 * 1024
const MAX_ERROR_BODY_BYTES = 64 * 1024
/** Servers may ask to keep unused connections for hours. */
const KEEP_ALIVE_MS = 10_000
const RETRY_MS = 8_000
/** Longer for locations: a running download is not given up as quickly. */
export const LOCATE_RETRY_MS = 20_000

export const USER_AGENT = `corral/${version}`

export interface OutgoingRequest {
  url: string
  method?: 'GET' | 'HEAD'
  headers?: Headers
  /** Sent only to the host of the address and to trusted hosts. */
  credentials?: Headers | undefined
  trustedHosts?: readonly string[]
  /** Set if a client chose the address: only public servers and these may be contacted. */
  privateAddresses?: readonly string[] | undefined
  /** The settings name the address, so it may redirect into a private network. */
  redirectsAnywhere?: boolean
  signal?: AbortSignal | undefined
  /** What to do on a redirect to a host that gets no credentials: follow it without them, or return its address. */
  foreign?: 'follow' | 'stop'
  headersOnly?: boolean
  retryTime?: number
  /** Returns whether a response with a temporary status is in fact final. */
  isFinal?(response: HubResponse): boolean
}

export interface HubResponse {
  status: number
  url: string
  headers: Headers
  /** Headers of all responses in order, including redirects. The last ones are `headers`. */
  hops: Headers[]
  text: string
  credentials: Headers | undefined
  /** Target of a redirect to a foreign host that was not followed. */
  foreignLocation?: string
}

/** Returns an address for messages: without credentials and without its query, which may contain a signature. */
export function shownAddress(address: string): string {
  const { origin, pathname } = new URL(address)
  return origin + pathname
}

/**
 * Creates an HTTP client that follows redirects and retries temporary failures, until the hub's plugin stops.
 * @param title name of the hub in messages
 */
export function hubFetch(title: string, options: ConnectionOptions, { signal: ending }: PluginContext) {
  const { proxy } = options
  const connect = { timeout: parseDuration(options.connect_timeout)! }
  const via = proxy ? ' (through the proxy of its settings)' : ''
  /** One pool per set of allowed addresses: a request must not reuse a connection that it may not open. */
  const connections = new Map<string, Promise<ServerConnections>>()
  const closeAll = () => connections.forEach(opening => void opening.then(opened => opened.close()))
  ending.addEventListener('abort', closeAll, { once: true })

  function connectionsTo(allowed: readonly string[] | undefined): Promise<ServerConnections> {
    const key = JSON.stringify(allowed ?? null)
    const open = connections.get(key)
    if (open) return open
    // An empty setting means the environment's proxy.
    const opening = openConnections(proxy || undefined, {
      connect: { ...connect, ...(allowed ? { lookup: allowedLookup(allowed) } : {}) },
      headersTimeout: RESPONSE_TIMEOUT_MS,
      bodyTimeout: RESPONSE_TIMEOUT_MS,
      keepAliveMaxTimeout: KEEP_ALIVE_MS
    })
    connections.set(key, opening)
    return opening
  }

  async function sendOnce(outgoing: OutgoingRequest, url: URL, credentials: Headers | undefined, signal: AbortSignal) {
    const { privateAddresses: allowed } = outgoing
    if (allowed) requireAllowedHost(url.hostname, allowed, proxy === '' && !hasProxy(process.env))
    const dispatcher = (await connectionsTo(allowed)).to(url)
    const { request } = await import('undici')
    const response = await request(url, {
      dispatcher,
      method: outgoing.method ?? 'GET',
      signal,
      headers: {
        'user-agent': USER_AGENT,
        // A compressed response hides a file's length.
        'accept-encoding': 'identity',
        ...outgoing.headers,
        ...credentials
      }
    })
    const headers: Headers = {}
    for (const [name, value] of Object.entries(response.headers)) {
      if (value !== undefined) headers[name] = Array.isArray(value) ? value.join(', ') : value
    }
    const { statusCode: status, body } = response
    const leave = isRedirect(status) || (outgoing.headersOnly && status < 300)
    // Closing an unread body costs the connection, but the body may be a whole model.
    if (leave) {
      body.on('error', () => undefined).destroy()
      return { status, headers, text: '' }
    }
    const limit = status >= 300 ? MAX_ERROR_BODY_BYTES : allowed ? MAX_CHOSEN_BODY_BYTES : MAX_BODY_BYTES
    return { status, headers, text: await readText(body, headers, limit, url) }
  }

  async function readText(body: AsyncIterable<Buffer>, headers: Headers, limit: number, url: URL): Promise<string> {
    // Some servers compress anyway.
    const { bytes, isWhole } = await readBody(body, headers['content-encoding'], limit)
    if (isWhole || limit === MAX_ERROR_BODY_BYTES) return bytes.toString()
    throw unreachable(`${url.host} sends a response of more than ${formatBytes(limit)}`)
  }

  function unreachable(why: string, cause?: unknown): CorralError {
    const sentence = /[.?]$/.test(why) ? why : `${why}.`
    return new CorralError('hub_unreachable', `${title} cannot be used: ${sentence}`, { cause })
  }

  async function attempt(outgoing: OutgoingRequest, signal: AbortSignal): Promise<HubResponse> {
    const start = new URL(outgoing.url)
    const hops: Headers[] = []
    let url = start
    let credentials = outgoing.credentials
    for (let redirects = 0; ; redirects++) {
      const { status, headers, text } = await sendOnce(outgoing, url, credentials, signal).catch(error => {
        if (signal.aborted) throw signal.reason
        throw error instanceof CorralError ? error : unreachable(connectionErrorText(error, url.host) + via, error)
      })
      hops.push(headers)
      const response = { status, url: url.href, headers, hops, text, credentials }
      if (!isRedirect(status)) return response
      if (redirects === MAX_REDIRECTS) throw unreachable(`${start.host} redirects more than ${MAX_REDIRECTS} times`)
      const redirect = checkRedirect(headers.location, {
        start,
        from: url,
        trustedHosts: outgoing.trustedHosts ?? [],
        mayBePrivate: outgoing.redirectsAnywhere === true || outgoing.privateAddresses !== undefined
      })
      if ('refused' in redirect) throw unreachable(`${start.host} cannot be trusted: it ${redirect.refused}`)
      if (redirect.foreign && outgoing.foreign === 'stop') return { ...response, foreignLocation: redirect.to.href }
      // After a foreign host, credentials are never sent again, not even back to the hub.
      if (redirect.foreign) credentials = undefined
      url = redirect.to
    }
  }

  /** Returns the response with any status. @throws CorralError `hub_unreachable` if there is none */
  return async function send(outgoing: OutgoingRequest): Promise<HubResponse> {
    const signal = outgoing.signal ? AbortSignal.any([ending, outgoing.signal]) : ending
    const last = performance.now() + (outgoing.retryTime ?? RETRY_MS)
    for (let tries = 0; ; tries++) {
      signal.throwIfAborted()
      let response: HubResponse | undefined
      let failure: unknown
      try {
        response = await attempt(outgoing, signal)
        if (!isTemporary(response.status) || outgoing.isFinal?.(response)) return response
      } catch (error) {
        // Errors without a cause mean that the server misbehaves, so a retry would not help.
        if (!(error instanceof CorralError) || error.cause === undefined) throw error
        failure = error
      }
      const delay = retryDelay(tries, response?.headers, Date.now(), Math.random())
      if (performance.now() + delay > last) {
        if (response) return response
        throw failure
      }
      await sleep(delay, undefined, { signal }).catch(() => {
        throw signal.reason
      })
    }
  }
}
export type HubFetch = ReturnType<typeof hubFetch>

/** Values of response headers by lower-case names. */
export type Headers = Record<string, string>

const FIRST_DELAY_MS = 400
const MAX_DELAY_MS = 8_000

/** Returns whether the same request may succeed a moment later. */
export const isTemporary = (status: number): boolean =>
  status === 408 || status === 425 || status === 429 || (status >= 500 && status !== 501 && status !== 505)

/** Returns the milliseconds to wait before a retry. @param attempt 0 after the first failure */
export function retryDelay(attempt: number, headers: Headers | undefined, now: number, random: number): number {
  const seconds = headers && retryAfterSeconds(headers, now)
  if (seconds !== undefined) return seconds * 1000
  const backOff = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** attempt)
  return backOff * (0.5 + random / 2)
}

/** An unreachable endpoint is tried last for this long. */
const SKIP_MS = 60_000
/** An endpoint is retried for this long before the next mirror is tried. */
const RETRY_BEFORE_MIRRORS_MS = 3_000
/** Status codes of gateways that cannot reach the hub behind them. */
const GATEWAY = new Set([502, 503, 504])

function errorCode(error: unknown): string | undefined {
  if (error instanceof AggregateError) return error.errors.map(errorCode).find(code => code !== undefined)
  if (!(error instanceof Error)) return undefined
  const code = 'code' in error ? String(error.code) : undefined
  // undici wraps the socket's error.
  return error.cause instanceof Error ? (errorCode(error.cause) ?? code) : code
}

export function connectionErrorText(error: unknown, host: string): string {
  const code = errorCode(error) ?? ''
  if (Object.hasOwn(EXPLANATIONS, code))
    return EXPLANATIONS[code as keyof typeof EXPLANATIONS].replace('{host}', () => host)
  const message = errorMessage(error) || code || 'the connection failed'
  if (/proxy response/i.test(message)) {
    const login = "requires a user name and a password (407), which HTTPS_PROXY or the hub's proxy setting can hold"
    return `the proxy refuses to connect to ${host}${message.includes('407') ? `: it ${login}` : ` (${message})`}`
  }
  return `${host}: ${message.replace(/\.$/, '')}`
}

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

export const withoutSlash = (address: string): string => address.replace(/\/+$/, '')

export interface PublicHub {
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
export type SendToHub = HubAccess['send']
export type EndpointResponse = HubResponse & { endpoint: string }

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

/** Opens a hub, and its mirrors while it cannot be reached. */
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
  const home = new URL(endpoint)
  // Another server would have its own token.
  const trustedHosts = hub.hosts.includes(home.host) ? hub.hosts : []
  const fetch = hubFetch(title, options, context)
  const skippedUntil = new Map<string, number>()
  const isSkipped = (base: string) => (skippedUntil.get(base) ?? 0) > performance.now()

  /**
   * Only the hub's own host gets the token. Any other endpoint, and mirrors, were configured by an admin.
   * @throws CorralError `hub_unreachable` of the endpoint; the signal's reason
   */
  async function send(outgoing: Omit<OutgoingRequest, 'url'> & { path: string }): Promise<EndpointResponse> {
    const { path, ...rest } = outgoing
    const token = await findToken(options.token, hub.tokens, process.env)
    const credentials = token === undefined ? undefined : { ...bearer(token), ...hub.moreHeaders?.(token) }
    let gateway: EndpointResponse | undefined
    let failure: unknown
    const all = [endpoint, ...options.mirrors.map(withoutSlash)]
    const bases = all.sort((a, b) => Number(isSkipped(a)) - Number(isSkipped(b)))
    for (const [i, base] of bases.entries()) {
      const url = base + path
      const own = mayHaveCredentials(new URL(url), home, [])
      const retryTime = i < bases.length - 1 ? { retryTime: RETRY_BEFORE_MIRRORS_MS } : {}
      try {
        const trust = {
          trustedHosts,
          redirectsAnywhere: base !== hub.usual,
          credentials: own ? credentials : undefined
        }
        const response = { ...(await fetch({ ...rest, ...retryTime, url, ...trust })), endpoint: base }
        if (!GATEWAY.has(response.status) || outgoing.isFinal?.(response)) return response
        gateway ??= response
      } catch (error) {
        if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') throw error
        failure ??= error
      }
      skippedUntil.set(base, performance.now() + SKIP_MS)
    }
    if (gateway) return gateway
    throw failure
  }
  return { endpoint, title, send }
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
export interface TokenSources {
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
