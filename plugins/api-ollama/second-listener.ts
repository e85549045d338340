import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, isIP } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { ConfigError } from '../../core/config/config-error.ts'
import { httpOrigin, listenError } from '../../core/http/listening.ts'

/** Milliseconds for which clients that do not read may delay the shutdown once all answers have ended. */
const CLOSE_LINGER = 1000

export type SecondListener = Awaited<ReturnType<typeof listenToo>>

/**
 * Serves the application at another address too, with its own timeouts and its own answer to what is not HTTP.
 * @param prepare is called with each request before any route sees it
 * @param ended aborted when no answer runs any longer
 * @throws ListenError when the address cannot be had: clients would speak to whoever has it
 */
export async function listenToo(
  app: FastifyInstance,
  address: ListenAddress,
  options: { log: FastifyBaseLogger; prepare: (request: IncomingMessage) => void; ended: AbortSignal }
) {
  const { log, prepare, ended } = options
  const server = createServer((request, response) => {
    prepare(request)
    app.routing(request, response)
  })
  server.keepAliveTimeout = app.server.keepAliveTimeout
  server.requestTimeout = app.server.requestTimeout
  server.headersTimeout = app.server.headersTimeout
  for (const answer of app.server.listeners('clientError')) server.on('clientError', answer as () => void)
  try {
    server.listen({ ...address, backlog: 1024 })
    await once(server, 'listening')
  } catch (error) {
    throw listenError(address, error, { port: 'in api-ollama.listen', host: 'in api-ollama.listen' })
  }
  const { port } = server.address() as AddressInfo
  log.info(`Ollama's clients are served at ${httpOrigin({ ...address, port })} too.`)
  const gone = new Promise<void>(resolve => server.once('close', resolve))
  return {
    /** Accepts no more connections; running requests go on. */
    stopAccepting() {
      server.close()
      server.closeIdleConnections()
    },
    /** Settles when the last connection has gone. */
    async closed() {
      const cut = () => void setTimeout(() => server.closeAllConnections(), CLOSE_LINGER).unref()
      if (ended.aborted) cut()
      else ended.addEventListener('abort', cut, { once: true })
      await gone
    }
  }
}

interface ListenAddress {
  host: string
  port: number
}

/** An entry of `listen`: empty, or `host:port` with an IPv6 address in brackets. */
export const LISTEN_PATTERN = '^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5})?$'

/**
 * Reads the address to listen on beside the server's own; undefined for an empty text.
 * @throws ConfigError saying what is wrong with it
 */
export function readListen(text: string, ownPort: number): ListenAddress | undefined {
  if (text === '') return undefined
  const wrong = (message: string) => {
    const setting = 'api-ollama.listen'
    return new ConfigError([{ where: setting, setting, message }])
  }
  const [, ipv6, name, digits] = /^(?:\[([^\]]+)\]|([A-Za-z0-9.-]+)):(\d+)$/.exec(text) ?? []
  const host = ipv6 ?? name
  const port = Number(digits)
  if (host === undefined || port > 65_535 || (ipv6 !== undefined && isIP(ipv6) !== 6)) {
    throw wrong(`${JSON.stringify(text)} is not an address with a port such as 127.0.0.1:11434.`)
  }
  if (port === 0 || port !== ownPort) return { host, port }
  throw wrong(
    `Port ${ownPort} is the server's own, which serves Ollama's clients below /ollama. Choose another one, such as 11434.`
  )
}
