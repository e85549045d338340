import type { IncomingMessage } from 'node:http'

/** Who may call. The address that the server itself listens on is known to it; other listeners ask. */
export interface Access {
  /**
   * Judges another address to listen on, as the server's own is judged.
   * @param setting the path of the setting that names it
   * @returns called with each request that comes by it before any route sees it
   * @throws ConfigError when everybody in the network could use the server and nobody has said that they may
   */
  admit(address: { host: string; port: number }, setting: string): (request: IncomingMessage) => void
}
