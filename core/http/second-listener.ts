import type { IncomingMessage } from 'node:http'
import { type AddressInfo, isIP } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { ConfigError } from '../config/config-error.ts'
import { type FurtherListener, listenFurther } from './further-listener.ts'
import { httpOrigin, listenError } from './listening.ts'

/** A setting that names an address to listen on beside the server's own. */
export interface ListenSetting {
  /** Its path, such as `api-ollama.listen`. */
  setting: string
  /** What is served there, as a sentence begins with it: `Ollama's clients are`. */
  served: string
  /** Where the server's own address serves the same. */
  path: string
  /** A port to choose. */
  example: number
}

export interface ListenAddress {
  host: string
  port: number
}

/** Empty, or `host:port` with an IPv6 address in brackets. */
export const LISTEN_PATTERN = '^((\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5})?$'

/**
 * Reads the address; undefined for an empty text.
 * @throws ConfigError saying what is wrong with it
 */
export function readListen(
  text: string,
  ownPort: number,
  { setting, served, path, example }: ListenSetting
): ListenAddress | undefined {
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

/**
 * Serves the application there too.
 * @param prepare is called with each request before any route sees it
 * @param ended aborted when no answer runs any longer
 * @throws ListenError when the address cannot be had: clients would speak to whoever has it
 */
export async function listenToo(
  app: FastifyInstance,
  address: ListenAddress,
  { setting, served }: ListenSetting,
  { log, ...options }: { log: FastifyBaseLogger; prepare: (request: IncomingMessage) => void; ended: AbortSignal }
): Promise<FurtherListener> {
  let listener: FurtherListener
  try {
    listener = await listenFurther(app, address, options)
  } catch (error) {
    throw listenError(address, error, { port: `in ${setting}`, host: `in ${setting}` })
  }
  const { port } = listener.address as AddressInfo
  log.info(`${served} served at ${httpOrigin({ ...address, port }, app.connectionGuard.encrypts)} too.`)
  return listener
}
