import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { isSystemError, messageOf } from '../../core/errors.ts'
import { type ListenAddress, originOf } from './listen-address.ts'

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
 * An address that cannot be had is told in the log, and costs no more than itself.
 * @param prepare is given each request before any route sees it
 * @param ended aborted when no answer runs any longer
 */
export async function listenToo(
  app: FastifyInstance,
  address: ListenAddress,
  options: { log: FastifyBaseLogger; prepare: (request: IncomingMessage) => void; ended: AbortSignal }
): Promise<SecondListener | undefined> {
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
    log.error(failureText(address, error))
    return undefined
  }
  const { port } = server.address() as AddressInfo
  log.info(`Ollama's clients are served at ${originOf({ ...address, port })} too.`)
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

function failureText({ host, port }: ListenAddress, error: unknown): string {
  const otherwise = `corral goes on without it; the same is served below /ollama of its own address.`
  if (isSystemError(error, 'EADDRINUSE')) {
    return (
      `Port ${port} on ${host} is taken by another program (Ollama itself?), so Ollama's clients are not served there. ` +
      `End that program, or choose another port in api-ollama.listen. ${otherwise}`
    )
  }
  return (
    `Cannot listen on ${originOf({ host, port })} for Ollama's clients: ${messageOf(error)}. ` +
    `Choose an address of this machine in api-ollama.listen. ${otherwise}`
  )
}
