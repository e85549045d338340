import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { CorralError } from '../../../core/errors.ts'
import { getInternalCaller } from '../../../core/http/internal-request.ts'
import { RATE_LIMIT_HEADERS } from '../../../core/http/rate-limit-headers.ts'
import { requireRole } from '../../../core/http/roles.ts'
import type { callerFinder } from './find-caller.ts'
import {
  hostAllowed,
  type OriginPattern,
  originAllowed,
  quoted,
  requireSameOrigin,
  siteAllowed
} from './host-and-origin.ts'

interface AccessRules {
  /** Whether the `Host` header of a request must name this machine, and whether an IP address is accepted as a name. */
  hostCheck(request: FastifyRequest): 'names' | 'names and addresses' | 'none'
  /** This machine's names besides loopback ones, normalized by `nameKey`. */
  hostNames(): ReadonlySet<string>
  origins(): readonly OriginPattern[]
  findCaller: ReturnType<typeof callerFinder>
  /** Called with the owner and the address of each request with a key or session. */
  noteUse(owner: string, address: string): void
}

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
/** Response headers that a page's script may read besides the default ones. */
const EXPOSED_HEADERS = [
  'x-request-id, request-id, retry-after, x-should-retry',
  'x-corral-dropped-messages, x-corral-unenforced-schema, x-corral-unheeded-schema, x-corral-clamped, x-corral-captured',
  'x-corral-unknown-options, x-corral-stream-id, x-corral-context, x-corral-max-tokens, x-corral-stopped, x-corral-ignored-tools',
  RATE_LIMIT_HEADERS.join(', ')
].join(', ')

/**
 * Checks that run before every route. They throw, so that the error handler of the route's own API formats the answer.
 * Headers are set before a reply is taken over, so that streamed answers have them too.
 */
export function addAccessHooks(app: FastifyInstance, rules: AccessRules): void {
  app.addHook('onRequest', async (request, reply) => {
    // The sender of this inner request was already authorized.
    if (getInternalCaller(request.raw)) return requireRole(request.caller, request.routeOptions.config?.role ?? 'user')
    const { headers, method } = request
    const { host, origin } = headers
    // A web page cannot open the private socket. A proxy in front of the socket must not turn a page into an admin.
    const { isLocal = false } = request.caller
    if (isLocal && origin !== undefined) {
      throw new CorralError('origin_not_allowed', "Web pages may not use the private socket. Use the server's address.")
    }
    const check = isLocal ? 'none' : rules.hostCheck(request)
    if (check !== 'none' && !hostAllowed(host, rules.hostNames(), { addresses: check === 'names and addresses' })) {
      const message = `${quoted(host)} is not a name of this server. Call it as localhost or 127.0.0.1, or add the name to security.hosts in config.yaml.`
      throw new CorralError('host_not_allowed', message)
    }
    reply.header('vary', 'Origin')
    if (!originAllowed(origin, host, rules.origins())) {
      const message = `Pages from ${quoted(origin)} may not use this server. Add it to security.origins in config.yaml (or CORRAL_ORIGINS) to allow it.`
      throw new CorralError('origin_not_allowed', message)
    }
    const role = request.routeOptions.config?.role ?? 'user'
    const isPublic = role === 'anyone' && (method === 'GET' || method === 'HEAD')
    if (origin === undefined && !siteAllowed([headers['sec-fetch-site']].flat()[0], isPublic)) {
      const message =
        'A page of another site sent this request without its origin, as links and images do. Enter the address in the browser, or call it from a page in security.origins with fetch().'
      throw new CorralError('origin_not_allowed', message)
    }
    if (origin !== undefined) {
      reply.header('access-control-allow-origin', origin)
      reply.header('access-control-expose-headers', EXPOSED_HEADERS)
      const isPreflight = method === 'OPTIONS' && headers['access-control-request-method'] !== undefined
      if (isPreflight) return answerPreflight(request, reply)
    }
    if (method === 'OPTIONS' && request.is404) return answerOptions(app, request, reply)
    try {
      const found = rules.findCaller(request)
      const { caller, key } = found instanceof Promise ? await found : found
      request.caller = caller
      if (key) {
        key.track(reply.raw)
        rules.noteUse(caller.owner, caller.address)
      }
    } catch (error) {
      if (error instanceof CorralError && error.code === 'unauthorized') reply.header('www-authenticate', 'Bearer')
      throw error
    }
    if (request.caller.session && origin !== undefined) requireSameOrigin(origin, host)
    if (role !== 'anyone') app.connectionGuard.takeFor(request.caller.turn, request.raw.socket)
    requireRole(request.caller, role)
  })
}

/** Answers OPTIONS with the methods of a path. @throws CorralError `route_not_found` */
function answerOptions(app: FastifyInstance, { url }: FastifyRequest, reply: FastifyReply): FastifyReply {
  const refusal = app.noRouteError('OPTIONS', url)
  const { allow } = (refusal.details ?? {}) as { allow?: string[] }
  if (url !== '*' && !allow) throw refusal
  return reply
    .code(204)
    .header('allow', [...(allow ?? METHODS.split(', ')), 'OPTIONS'].join(', '))
    .send()
}

function answerPreflight({ headers }: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.vary('Access-Control-Request-Headers')
  const wanted = headers['access-control-request-headers']
  if (wanted !== undefined) reply.header('access-control-allow-headers', wanted)
  // Private Network Access: a public page that calls a private address needs this header.
  if (headers['access-control-request-private-network'] === 'true') {
    reply.header('access-control-allow-private-network', 'true')
  }
  // Browsers may cache the answer for ten minutes.
  return reply.code(204).headers({ 'access-control-allow-methods': METHODS, 'access-control-max-age': '600' }).send()
}
