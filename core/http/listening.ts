import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, isIP, type ListenOptions } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { ConfigError } from '../config/config-error.ts'
import { errorMessage, isSystemError } from '../errors.ts'
import type { Encryption } from './connection-guard.ts'

/** An address in the configuration is not available. corral does not start then, whichever plugin listens there. */
export class ListenError extends Error {
  override readonly name = 'ListenError'
}

/**
 * Explains why an address cannot be used, and how to choose another one.
 * @param choose names of the settings of port and host, such as `in api-ollama.listen`; by default the server's own
 * address
 */
export function listenError(
  { host, port }: ListenAddress,
  cause: unknown,
  choose = {
    port: 'with --port, CORRAL_PORT or "port" in config.yaml',
    host: 'with --host, CORRAL_HOST or "host" in config.yaml'
  }
): ListenError {
  const text = isSystemError(cause, 'EADDRINUSE')
    ? `Port ${port} on ${host} is used by another program. Stop that program, or choose another port ${choose.port}.`
    : `Cannot listen on ${httpOrigin({ host, port })} (${errorMessage(cause)}). ` +
      `Choose an address of this machine ${choose.host}.`
  return new ListenError(text, { cause })
}

/** The origin in URLs. @param secure whether it uses TLS */
export function httpOrigin({ host, port }: ListenAddress, secure = false): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
}

/** Milliseconds for which clients that do not read may delay the shutdown once all answers have ended. */
export const CLOSE_LINGER = 1000

interface ListenerOptions {
  prepare(request: IncomingMessage, response: ServerResponse): unknown
  ended: AbortSignal
  encryption?: Encryption
}

export type AdditionalListener = Awaited<ReturnType<typeof openListener>>

/**
 * Serves the application at an additional address or path, with the same timeouts and the same answers to malformed
 * HTTP.
 * @param prepare called with each request before any route sees it; false if it has answered the request
 * @param ended aborted when no answer is in progress
 * @param encryption encrypts connections in place of the server's certificate
 * @throws the error of listening
 */
export async function openListener(
  app: FastifyInstance,
  at: Pick<ListenOptions, 'host' | 'port' | 'path'>,
  { prepare, ended, encryption }: ListenerOptions
) {
  const server = createServer({ connectionsCheckingInterval: app.server.headersTimeout / 2 }, (request, response) => {
    if (prepare(request, response) !== false) app.routing(request, response)
  })
  server.keepAliveTimeout = app.server.keepAliveTimeout
  server.requestTimeout = app.server.requestTimeout
  server.headersTimeout = app.server.headersTimeout
  // The private socket, which has a path, never refuses connections for being full.
  app.connectionGuard.attach(server, at.path === undefined, encryption)
  for (const answer of app.server.listeners('clientError')) server.on('clientError', answer as () => void)
  server.listen({ ...at, backlog: 1024 })
  await once(server, 'listening')
  const gone = new Promise<void>(resolve => server.once('close', resolve))
  return {
    /** A path, or an address with the actual port. */
    address: server.address() as AddressInfo | string,
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

/** A setting with an additional address to listen on. */
interface ListenSetting {
  setting: string
  /** The purpose of the address, as the beginning of a sentence: `Ollama's clients are`. */
  served: string
  /** The path that serves the same at the server's own address. */
  path: string
  /** An example of a port. */
  example: number
}

type ListenAddress = { host: string; port: number }

/** Empty, or `host:port` with an IPv6 address in brackets. */
export const LISTEN_PATTERN = '^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5})?$'

/** Parses the address; undefined for an empty text. @throws ConfigError that says what is wrong with it */
export function readListen(text: string, ownPort: number, { setting, served, path, example }: ListenSetting) {
  if (text === '') return undefined
  const wrong = (message: string) => new ConfigError([{ where: setting, setting, message }])
  const [, ipv6, name, digits] = /^(?:\[([^\]]+)\]|([A-Za-z0-9.-]+)):(\d+)$/.exec(text) ?? []
  const host = ipv6 ?? name
  const port = Number(digits)
  if (host === undefined || port > 65_535 || (ipv6 !== undefined && isIP(ipv6) !== 6)) {
    throw wrong(`${JSON.stringify(text)} is not an address with a port such as 127.0.0.1:${example}.`)
  }
  if (port === 0 || port !== ownPort) return { host, port }
  throw wrong(
    `Port ${ownPort} is the server's own, where ${served} served at ${path}. Choose another one, such as ${example}.`
  )
}

/** Like `openListener`. @throws ListenError if the address is taken: clients would talk to another program */
export async function openConfiguredListener(
  app: FastifyInstance,
  address: ListenAddress,
  { setting, served }: ListenSetting,
  { log, ...options }: { log: FastifyBaseLogger } & Parameters<typeof openListener>[2]
): Promise<AdditionalListener> {
  let listener: AdditionalListener
  try {
    listener = await openListener(app, address, options)
  } catch (error) {
    throw listenError(address, error, { port: `in ${setting}`, host: `in ${setting}` })
  }
  const { port } = listener.address as AddressInfo
  log.info(`${served} also served at ${httpOrigin({ ...address, port }, app.connectionGuard.encrypts)}.`)
  return listener
}
