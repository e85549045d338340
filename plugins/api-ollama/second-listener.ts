import type { IncomingMessage } from 'node:http'
import { type AddressInfo, isIP } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { ConfigError } from '../../core/config/config-error.ts'
import { type FurtherListener, listenFurther } from '../../core/http/further-listener.ts'
import { httpOrigin, listenError } from '../../core/http/listening.ts'

/**
 * Serves the application at another address too.
 * @param prepare is called with each request before any route sees it
 * @param ended aborted when no answer runs any longer
 * @throws ListenError when the address cannot be had: clients would speak to whoever has it
 */
export async function listenToo(
  app: FastifyInstance,
  address: ListenAddress,
  { log, ...options }: { log: FastifyBaseLogger; prepare: (request: IncomingMessage) => void; ended: AbortSignal }
): Promise<FurtherListener> {
  let listener: FurtherListener
  try {
    listener = await listenFurther(app, address, options)
  } catch (error) {
    throw listenError(address, error, { port: 'in api-ollama.listen', host: 'in api-ollama.listen' })
  }
  const { port } = listener.address as AddressInfo
  log.info(`Ollama's clients are served at ${httpOrigin({ ...address, port })} too.`)
  return listener
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
