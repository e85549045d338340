import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteShorthandOptions } from 'fastify'

/** A route that is an alias of another one. */
export interface ReroutedRoute extends Pick<RouteShorthandOptions, 'config' | 'schema'> {
  method: 'GET' | 'POST'
  /** The path of the route itself. */
  url: string
  as: string
}

/**
 * Adds a route whose requests are routed to another path after its own role and limits were checked. The second route
 * logs, checks and answers.
 * @param mark called with each request before that, to recognize it later
 */
export function reroute(
  app: FastifyInstance,
  { method, url, as, config, schema }: ReroutedRoute,
  mark: (request: IncomingMessage) => void
): void {
  app.route({
    method,
    url,
    ...(config && { config }),
    ...(schema && { schema }),
    logLevel: 'silent',
    onRequest: async (request: FastifyRequest, reply: FastifyReply) => {
      reply.hijack()
      const { url: sent = '' } = request.raw
      const query = sent.indexOf('?')
      request.raw.url = query === -1 ? as : as + sent.slice(query)
      mark(request.raw)
      app.routing(request.raw, reply.raw)
    },
    handler: async (_request, reply) => reply
  })
}
