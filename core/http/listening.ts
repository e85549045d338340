import { errorMessage, isSystemError } from '../errors.ts'

/** An address of the configuration is not available: corral does not start, whichever plugin listens there. */
export class ListenError extends Error {
  override readonly name = 'ListenError'
}

/**
 * Says why an address cannot be listened on, and where another one is chosen.
 * @param choose what names the port and the host, such as `in api-ollama.listen`; by default the server's own address
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
    ? `Port ${port} on ${host} is taken by another program. End that program, or choose another port ${choose.port}.`
    : `Cannot listen on ${httpOrigin({ host, port })} (${errorMessage(cause)}). ` +
      `Choose an address of this machine ${choose.host}.`
  return new ListenError(text, { cause })
}

/** As it stands in an address of the web. @param secure whether it is reached by TLS */
export function httpOrigin({ host, port }: { host: string; port: number }, secure = false): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
