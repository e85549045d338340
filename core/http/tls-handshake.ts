import type { Socket } from 'node:net'
import { TLSSocket } from 'node:tls'
import type { ServerCertificate } from './certificate.ts'
import { refusalText } from './unreadable-request.ts'

/** Milliseconds that a client has for the TLS handshake. */
const HANDSHAKE_LIMIT = 10_000
/** The first byte of a TLS connection. An HTTP request begins with a letter. */
const HANDSHAKE_RECORD = 22

const PLAIN_HTTP = refusalText(
  '400 Bad Request',
  'invalid_request',
  'This server uses TLS, and the request came without it. Use an address that begins with https://'
)

/**
 * Encrypts the connection of a client. Disconnects a client that is too slow or does not speak TLS, and explains the
 * problem if it sent a plain HTTP request.
 * @param ready gets the encrypted connection after the handshake
 */
export function encrypt(raw: Socket, certificate: ServerCertificate, ready: (socket: TLSSocket) => void): void {
  const limit = setTimeout(() => raw.destroy(), HANDSHAKE_LIMIT)
  const end = () => clearTimeout(limit)
  raw.once('close', end)
  raw.on('error', () => {
    // The connection was closed, which "close" reports.
  })
  raw.once('readable', (): unknown => {
    const begin: Buffer | null = raw.read()
    if (!begin) return raw.destroy()
    if (begin[0] !== HANDSHAKE_RECORD) return raw.resume().end(PLAIN_HTTP)
    raw.unshift(begin)
    const socket = new TLSSocket(raw, {
      isServer: true,
      secureContext: certificate.context,
      ALPNProtocols: ['http/1.1']
    })
    const failed = () => raw.destroy()
    socket.once('error', failed)
    socket.once('secure', () => {
      end()
      socket.off('error', failed)
      ready(socket)
    })
  })
}
