import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { BlockList, isIP } from 'node:net'
import { hostname } from 'node:os'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ConfigError } from '../../core/config/config-error.ts'
import { CorralError } from '../../core/errors.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'

/** A host name, or an IPv6 address without brackets. */
const HOST_PATTERN = '^([^\\s:/?#@\\[\\]\\\\]+|[0-9A-Fa-f:.]+)$'

/** An entry of `origins` must be `*`, `null`, or `scheme://host[:port]` where `*` matches any characters of a host. */
export const ORIGIN_PATTERN = '^(\\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\\s/?#@\\\\]+)$'

export default definePlugin({
  name: 'security',
  api: 1,
  description: 'Who may call: Host, Origin, CORS and API keys',
  offers: ['access'],
  options: Type.Object(
    {
      origins: Type.Array(
        Type.String({ pattern: ORIGIN_PATTERN, title: 'an origin such as https://chat.example.org, "*" or "null"' }),
        {
          default: [],
          description:
            'Origins whose pages may call, besides those of this machine, such as https://chat.example.org or https://*.example.org; "*" is all, "null" is pages without an origin'
        }
      ),
      hosts: Type.Array(Type.String({ pattern: HOST_PATTERN, title: 'a host name without scheme and port' }), {
        default: [],
        description: "Host names of this server besides localhost and the machine's own, such as behind a proxy"
      }),
      api_keys: Type.Array(Type.String({ pattern: '^\\S+$', writeOnly: true, title: 'a text without spaces' }), {
        default: [],
        description: 'API keys; each request must have one of them. With an empty list no key is needed'
      }),
      insecure: Type.Boolean({
        default: false,
        description: 'Allow listening beyond this machine without API keys'
      })
    },
    { additionalProperties: false }
  ),
  setup({ config, log }, options) {
    const judge = (host: string, port: number, setting?: string): Exposure => {
      const exposure = judgeBind(host, { keys: options.api_keys.length, insecure: options.insecure }, setting)
      if (exposure === 'open') {
        log.warn(
          `INSECURE: everyone who can reach ${host}:${port} can use, load and delete models. Set security.api_keys to require keys.`
        )
      }
      return exposure
    }
    const own = judge(config.host, config.port)
    /** Exposures of requests that came by other listeners. */
    const exposures = new WeakMap<IncomingMessage, Exposure>()
    return {
      services: {
        access: {
          admit({ host, port }, setting) {
            const exposure = judge(host, port, setting)
            return request => void exposures.set(request, exposure)
          }
        }
      },
      hooks: accessHooks({
        checkHost: request => (exposures.get(request) ?? own) === 'local',
        hostNames: new Set([hostname(), ...options.hosts].map(nameKey)),
        origins: options.origins.map(originPattern),
        keys: options.api_keys
      })
    }
  }
})

interface AccessRules {
  /** Whether the `Host` header of a request must name this machine. */
  checkHost(request: IncomingMessage): boolean
  /** This machine's names besides loopback ones, normalized by `nameKey`. */
  hostNames: ReadonlySet<string>
  origins: readonly OriginPattern[]
  /** With an empty list no key is needed. */
  keys: readonly string[]
}

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
/** What a page's script may read of a reply besides the usual headers. */
const EXPOSED_HEADERS =
  'x-request-id, request-id, retry-after, x-should-retry, x-corral-dropped-messages, x-corral-unheeded-schema'

/**
 * Checks that come before every route. They throw: the error handler of the route's own surface formats the answer.
 * Headers are set before any reply is taken over, so that streamed answers carry them too.
 */
function accessHooks(rules: AccessRules): FastifyPluginAsync {
  const hasKey = keyCheck(rules.keys)
  return async app => {
    app.addHook('onRequest', async (request, reply) => {
      const { host, origin } = request.headers
      if (rules.checkHost(request.raw) && !hostAllowed(host, rules.hostNames)) {
        throw new CorralError(
          'host_not_allowed',
          `${quoted(host)} is not a name of this server. Call it as localhost or 127.0.0.1, or add the name to security.hosts in config.yaml.`
        )
      }
      reply.vary('Origin')
      if (!originAllowed(origin, host, rules.origins)) {
        throw new CorralError(
          'origin_not_allowed',
          `Pages from ${quoted(origin)} may not use this server. Add it to security.origins in config.yaml (or CORRAL_ORIGINS) to allow it.`
        )
      }
      if (origin !== undefined) {
        reply.header('access-control-allow-origin', origin)
        reply.header('access-control-expose-headers', EXPOSED_HEADERS)
        const isPreflight =
          request.method === 'OPTIONS' && request.headers['access-control-request-method'] !== undefined
        if (isPreflight) return answerPreflight(request, reply)
      }
      if (rules.keys.length === 0 || request.routeOptions.config.role === 'anyone' || hasKey(request.headers)) return
      reply.header('www-authenticate', 'Bearer')
      throw new CorralError(
        'unauthorized',
        'This server needs an API key, and the request has none that it knows. Send "Authorization: Bearer <key>" or "x-api-key: <key>".'
      )
    })
  }
}

function answerPreflight({ headers }: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.vary('Access-Control-Request-Headers')
  const wanted = headers['access-control-request-headers']
  if (wanted !== undefined) reply.header('access-control-allow-headers', wanted)
  // A public page that calls a private address asks for this (Private Network Access).
  if (headers['access-control-request-private-network'] === 'true') {
    reply.header('access-control-allow-private-network', 'true')
  }
  // Browsers may remember the answer for ten minutes.
  return reply.code(204).headers({ 'access-control-allow-methods': METHODS, 'access-control-max-age': '600' }).send()
}

function quoted(header: string | undefined): string {
  const text = header ?? ''
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
}

const LOOPBACK = new BlockList()
LOOPBACK.addSubnet('127.0.0.0', 8)
LOOPBACK.addAddress('::1', 'ipv6')

/**
 * Whether a host, without port and brackets, is this machine's loopback: `localhost`, `*.localhost`, 127.0.0.0/8, `::1`
 * and its IPv4-mapped form. Only whole addresses count (`127.1` does not), and names are not looked up.
 */
export function isLoopbackHost(host: string): boolean {
  const version = isIP(host)
  // A zone (`::1%lo`) is for connecting and has no place in a name that others use.
  if (version) return !host.includes('%') && LOOPBACK.check(host, version === 6 ? 'ipv6' : 'ipv4')
  const name = nameKey(host)
  return name === 'localhost' || /^([a-z0-9_-]+\.)+localhost$/.test(name)
}

/** The host of a `Host` header, without port and brackets; undefined when it is malformed. */
export function hostOf(header: string): string | undefined {
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@[\]\\]+))(?::\d{1,5})?$/.exec(header)
  return match?.[1] ?? match?.[2]
}

/** What two spellings of one host name share: case and the dot of the root do not count. */
export function nameKey(name: string): string {
  return name.toLowerCase().replace(/\.$/, '')
}

/**
 * Whether a `Host` header names this machine, so that the request was not sent to it through a foreign name that was
 * pointed here (DNS rebinding).
 * @param header undefined where there is none (HTTP/1.0)
 * @param names this machine's own host names and those that were configured, normalized by `nameKey`
 */
export function hostAllowed(header: string | undefined, names: ReadonlySet<string>): boolean {
  if (header === undefined) return true
  const host = hostOf(header)
  return host !== undefined && (isLoopbackHost(host) || names.has(nameKey(host)))
}

/** Schemes of local applications that show pages of their own. */
const APPLICATION_SCHEMES = new Set(['app', 'tauri', 'vscode-webview'])
const DEFAULT_PORTS: Record<string, string> = { http: '80', https: '443' }

/** Tells whether an origin was configured as allowed. */
type OriginPattern = (origin: string) => boolean

/**
 * Reads an entry of `origins`. In a host `*` matches at least one character, dots included: `https://*.example.org`
 * is all names below it, not itself. As a port it matches any port.
 */
export function originPattern(entry: string): OriginPattern {
  if (entry === '*') return () => true
  const source = entry
    .toLowerCase()
    .replace(/[.+?^${}()|[\]\\]/g, '\\$&')
    .replace(/:\*$/, '(:[0-9]+)?')
    .replaceAll('*', '[a-z0-9._-]+')
  const pattern = new RegExp(`^${source}$`)
  return origin => pattern.test(origin.toLowerCase())
}

/**
 * Whether pages of this origin may use the server.
 * @param header the `Origin` header; undefined where there is none: no page of a browser sent the request
 * @param host the `Host` header
 */
export function originAllowed(
  header: string | undefined,
  host: string | undefined,
  configured: readonly OriginPattern[]
): boolean {
  if (header === undefined) return true
  if (configured.some(matches => matches(header))) return true
  const match = /^([a-z][a-z0-9+.-]*):\/\/([^\s/?#@\\]*)$/i.exec(header)
  if (!match) return false
  const scheme = match[1]!.toLowerCase()
  const authority = match[2]!
  if (APPLICATION_SCHEMES.has(scheme)) return true
  if (!(scheme in DEFAULT_PORTS)) return false
  const name = hostOf(authority)
  if (name === undefined) return false
  return isLoopbackHost(name) || (host !== undefined && withPort(authority, scheme) === withPort(host, scheme))
}

function withPort(authority: string, scheme: string): string {
  const text = authority.toLowerCase()
  return /:\d+$/.test(text) ? text : `${text}:${DEFAULT_PORTS[scheme]}`
}

const digest = (key: string) => createHash('sha256').update(key).digest()

/** Tells whether a request has one of these keys, as `Authorization: Bearer <key>` or `x-api-key: <key>`. */
export function keyCheck(keys: readonly string[]): (headers: IncomingHttpHeaders) => boolean {
  const known = keys.map(digest)
  return ({ authorization, 'x-api-key': header }) => {
    const bearer = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
    const sent = [bearer, [header].flat()[0]].filter(key => key !== undefined).map(digest)
    // All keys are compared, whichever fits, so that the time says nothing about them.
    return sent.some(key => known.filter(own => timingSafeEqual(key, own)).length > 0)
  }
}

/** Who may reach the server: only programs of this machine, or others too; those with or without a key. */
type Exposure = 'local' | 'keys' | 'open'

/**
 * Decides how exposed an address to listen on is.
 * @param setting the path of the setting that names it
 * @throws ConfigError when everybody in the network could use the server and the configuration does not allow that
 */
export function judgeBind(host: string, options: { keys: number; insecure: boolean }, setting = 'host'): Exposure {
  if (isLoopbackHost(host)) return 'local'
  if (options.keys > 0) return 'keys'
  if (options.insecure) return 'open'
  throw new ConfigError([
    {
      where: setting,
      setting,
      message: `Listening on ${host} lets every machine that can reach it use this server, and no API key protects it. Set keys in security.api_keys (or CORRAL_API_KEYS), or listen on 127.0.0.1, or allow this with security.insecure: true (or CORRAL_INSECURE=1).`
    }
  ])
}
