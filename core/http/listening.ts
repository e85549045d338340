import { errorMessage, isSystemError } from '../errors.ts'

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
  { host, port }: { host: string; port: number },
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
export function httpOrigin({ host, port }: { host: string; port: number }, secure = false): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
