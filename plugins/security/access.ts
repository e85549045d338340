import type { IncomingMessage } from 'node:http'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { hostAllowed } from './addresses.ts'
import { keyCheck } from './keys.ts'
import { type OriginPattern, originAllowed } from './origins.ts'

export interface AccessRules {
  /** Whether the `Host` header of a request must name this machine. */
  checkHost(request: IncomingMessage): boolean
  /** This machine's names besides loopback ones, as `nameKey` gives them. */
  hostNames: ReadonlySet<string>
  origins: readonly OriginPattern[]
  /** Empty asks for none. */
  keys: readonly string[]
}

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
/** What a page's script may read of a reply besides the usual headers. */
const EXPOSED_HEADERS =
  'x-request-id, request-id, retry-after, x-should-retry, x-corral-dropped-messages, x-corral-unheeded-schema'
/** Seconds that a browser may remember the answer to a preflight request. */
const PREFLIGHT_AGE = '600'
/** Answers without a key, for whoever watches whether the server is up. */
const PUBLIC_ROUTE = '/api/health'

/**
 * Checks that come before every route. They throw: the error handler of the route's own surface words the answer.
 * Headers are set before any reply is taken over, so that streamed answers carry them too.
 */
export function accessHooks(rules: AccessRules): FastifyPluginAsync {
  const hasKey = keyCheck(rules.keys)
  return async app => {
    app.addHook('onRequest', async (request, reply) => {
      const { host, origin } = request.headers
      if (rules.checkHost(request.raw) && !hostAllowed(host, rules.hostNames)) {
        throw new CorralError(
          'host_not_allowed',
          `This server does not go by the name ${quoted(host)}. Call it as localhost or 127.0.0.1, or add the name to security.hosts in config.yaml.`
        )
      }
      reply.vary('Origin')
      if (!originAllowed(origin, host, rules.origins)) {
        throw new CorralError(
          'origin_not_allowed',
          `Pages of ${quoted(origin)} may not use this server. Add it to security.origins in config.yaml (or CORRAL_ORIGINS) to allow it.`
        )
      }
      if (origin !== undefined) {
        reply.header('access-control-allow-origin', origin)
        reply.header('access-control-expose-headers', EXPOSED_HEADERS)
        if (isPreflight(request)) return answerPreflight(request, reply)
      }
      if (rules.keys.length === 0 || request.routeOptions.url === PUBLIC_ROUTE || hasKey(request.headers)) return
      reply.header('www-authenticate', 'Bearer')
      throw new CorralError(
        'unauthorized',
        'This server asks for an API key, and the request carries none that it knows. Send "Authorization: Bearer <key>" or "x-api-key: <key>".'
      )
    })
  }
}

function isPreflight(request: FastifyRequest): boolean {
  return request.method === 'OPTIONS' && request.headers['access-control-request-method'] !== undefined
}

function answerPreflight(request: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.vary('Access-Control-Request-Headers')
  const wanted = request.headers['access-control-request-headers']
  if (wanted !== undefined) reply.header('access-control-allow-headers', wanted)
  // A public page that calls a private address asks for this (Private Network Access).
  if (request.headers['access-control-request-private-network'] === 'true') {
    reply.header('access-control-allow-private-network', 'true')
  }
  return reply
    .code(204)
    .headers({ 'access-control-allow-methods': METHODS, 'access-control-max-age': PREFLIGHT_AGE })
    .send()
}

function quoted(header: string | undefined): string {
  const text = header ?? ''
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
}
