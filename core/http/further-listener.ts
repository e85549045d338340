import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo, ListenOptions } from 'node:net'
import type { FastifyInstance } from 'fastify'

/** Milliseconds for which clients that do not read may delay the shutdown once all answers have ended. */
const CLOSE_LINGER = 1000

export type FurtherListener = Awaited<ReturnType<typeof listenFurther>>

/**
 * Serves the application at an additional address or path, with the same timeouts and the same answers to malformed
 * HTTP.
 * @param prepare called with each request before any route sees it
 * @param ended aborted when no answer is in progress
 * @throws the error of listening
 */
export async function listenFurther(
  app: FastifyInstance,
  at: Pick<ListenOptions, 'host' | 'port' | 'path'>,
  { prepare, ended }: { prepare: (request: IncomingMessage) => void; ended: AbortSignal }
) {
  const server = createServer({ connectionsCheckingInterval: app.server.headersTimeout / 2 }, (request, response) => {
    prepare(request)
    app.routing(request, response)
  })
  server.keepAliveTimeout = app.server.keepAliveTimeout
  server.requestTimeout = app.server.requestTimeout
  server.headersTimeout = app.server.headersTimeout
  // The private socket, which has a path, never refuses connections for being full.
  app.connectionGuard.attach(server, at.path === undefined)
  for (const answer of app.server.listeners('clientError')) server.on('clientError', answer as () => void)
  server.listen({ ...at, backlog: 1024 })
  await once(server, 'listening')
  const gone = new Promise<void>(resolve => server.once('close', resolve))
  return {
    /** Where it listens: a path, or an address with the actual port. */
    address: server.address() as AddressInfo | string,
    /** Accepts no more connections. Requests in progress continue. */
    stopAccepting() {
      server.close()
      server.closeIdleConnections()
    },
    /** Resolves when the last connection has ended. */
    async closed() {
      const cut = () => void setTimeout(() => server.closeAllConnections(), CLOSE_LINGER).unref()
      if (ended.aborted) cut()
      else ended.addEventListener('abort', cut, { once: true })
      await gone
    }
  }
}
