import type { Socket } from 'node:net'
import { TLSSocket } from 'node:tls'
import type { ServerCertificate } from './certificate.ts'

/** Milliseconds that a client has to agree on the encryption. */
const HANDSHAKE_LIMIT = 10_000
/** The first byte of a TLS connection; that of an HTTP request is a letter. */
const HANDSHAKE_RECORD = 22

const PLAIN_HTTP = JSON.stringify({
  error: 'This server speaks TLS, and the request came without it. Use an address that begins with https://',
  errorCode: 400,
  code: 'invalid_request'
})

/**
 * Encrypts the connection of a client. One that does not get that far in time, or does not speak TLS, is closed; a plain
 * request is told why.
 * @param ready takes the encrypted connection once both sides agree
 */
export function encrypt(raw: Socket, certificate: ServerCertificate, ready: (socket: TLSSocket) => void): void {
  const limit = setTimeout(() => raw.destroy(), HANDSHAKE_LIMIT)
  const end = () => clearTimeout(limit)
  raw.once('close', end)
  raw.on('error', () => {
    // It has gone, which "close" tells.
  })
  raw.once('readable', (): unknown => {
    const begin: Buffer | null = raw.read()
    if (!begin) return raw.destroy()
    if (begin[0] !== HANDSHAKE_RECORD) return refusePlain(raw)
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

function refusePlain(raw: Socket): void {
  const length = Buffer.byteLength(PLAIN_HTTP)
  raw.resume()
  raw.end(
    `HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: ${length}\r\nconnection: close\r\n\r\n${PLAIN_HTTP}`
  )
}
