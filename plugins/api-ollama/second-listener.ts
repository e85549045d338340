import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { type AddressInfo, isIP } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { httpOrigin, listenError } from '../../core/http/listening.ts'

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

export interface ListenAddress {
  host: string
  port: number
}

/** An entry of `listen`: empty, or `host:port` with an IPv6 address in brackets. */
export const LISTEN_PATTERN = '^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5})?$'

/** Reads `host:port`; undefined for an empty text and what is no address. */
export function parseListen(text: string): ListenAddress | undefined {
  const match = /^(?:\[([^\]]+)\]|([A-Za-z0-9.-]+)):(\d+)$/.exec(text)
  if (!match) return undefined
  const [, ipv6, name] = match
  const port = Number(match[3])
  if (port > 65_535 || (ipv6 !== undefined && isIP(ipv6) !== 6)) return undefined
  return { host: (ipv6 ?? name)!, port }
}

/**
 * What is wrong with it as an address beside the server's own; undefined where nothing is.
 * @param address what `parseListen` makes of the text
 */
export function listenFault(text: string, address: ListenAddress | undefined, ownPort: number): string | undefined {
  if (text === '') return undefined
  if (!address) return `${JSON.stringify(text)} is no address with a port such as 127.0.0.1:11434.`
  if (address.port === 0 || address.port !== ownPort) return undefined
  return `Port ${ownPort} is the server's own, which serves Ollama's clients below /ollama. Choose another one, such as 11434.`
}
