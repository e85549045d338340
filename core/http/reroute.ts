import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteShorthandOptions } from 'fastify'

/**
 * Adds a route whose requests are routed to another path after its own role and limits were checked. The second route
 * logs, checks and answers.
 * @param as the other path
 * @param mark called with each request before that, to recognize it later
 */
export function reroute(
  app: FastifyInstance,
  {
    as,
    ...route
  }: { method: 'GET' | 'POST'; url: string; as: string } & Pick<RouteShorthandOptions, 'config' | 'schema'>,
  mark: (request: IncomingMessage) => void
): void {
  app.route({
    ...route,
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
