import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { httpOrigin, listenError } from '../../core/http/listening.ts'
import type { ListenAddress } from './listen-address.ts'

/** How long clients that do not read may hold up the shutdown once all answers have ended (milliseconds). */
const CLOSE_LINGER = 1000

export interface SecondListener {
  /** Takes no more connections; running requests go on. */
  stopAccepting(): void
  /** Settles when the last connection has gone. */
  closed(): Promise<void>
}

/**
 * Serves the application at another address too, with its own timeouts and its own answer to what is no HTTP.
 * @param prepare is given each request before any route sees it
 * @param ended aborted when no answer runs any longer
 * @throws ListenError when the address cannot be had: clients would speak to whoever has it
 */
export async function listenToo(
  app: FastifyInstance,
  address: ListenAddress,
  options: { log: FastifyBaseLogger; prepare: (request: IncomingMessage) => void; ended: AbortSignal }
): Promise<SecondListener> {
  const { log, prepare, ended } = options
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    prepare(request)
    app.routing(request, response)
  })
  server.keepAliveTimeout = app.server.keepAliveTimeout
  server.requestTimeout = app.server.requestTimeout
  server.headersTimeout = app.server.headersTimeout
  for (const answer of app.server.listeners('clientError')) server.on('clientError', answer as () => void)
  try {
    await listening(server, address)
  } catch (error) {
    throw listenError(address, error, { port: 'in api-ollama.listen', host: 'in api-ollama.listen' })
  }
  const { port } = server.address() as AddressInfo
  log.info(`Ollama's clients are served at ${httpOrigin({ ...address, port })} too.`)
  const gone = new Promise<void>(resolve => server.once('close', resolve))
  return {
    stopAccepting() {
      server.close()
      server.closeIdleConnections()
    },
    async closed() {
      const cut = () => void setTimeout(() => server.closeAllConnections(), CLOSE_LINGER).unref()
      if (ended.aborted) cut()
      else ended.addEventListener('abort', cut, { once: true })
      await gone
    }
  }
}

function listening(server: Server, { host, port }: ListenAddress): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ host, port, backlog: 1024 }, () => {
      server.off('error', reject)
      resolve()
    })
  })
}
