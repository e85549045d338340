import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'

/**
 * Adds a route whose requests are routed to another path after its own role and limits were checked. The second route
 * logs, checks and answers.
 * @param as the other path, or returns it for a URL
 * @param mark called with each request before that, to recognize it later
 */
export function reroute(
  app: FastifyInstance,
  {
    as,
    ...route
  }: Pick<RouteOptions, 'method' | 'url' | 'config' | 'schema'> & { as: string | ((url: string) => string) },
  mark: (request: IncomingMessage) => void = () => {}
): void {
  app.route({
    ...route,
    logLevel: 'silent',
    onRequest: async (request: FastifyRequest, reply: FastifyReply) => {
      reply.hijack()
      const { url: sent = '' } = request.raw
      request.raw.url = typeof as === 'string' ? as + /\?.*|$/s.exec(sent)![0] : as(sent)
      mark(request.raw)
      app.routing(request.raw, reply.raw)
    },
    handler: async (_request, reply) => reply
  })
}
