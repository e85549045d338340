import type { Socket } from 'node:net'
import type { ConnectionError } from 'fastify'

/** A whole reply in HTTP, for connections that do not reach the application. It ends the connection. */
export function refusalText(status: string, code: string, error: string, header = ''): string {
  const body = JSON.stringify({ error, errorCode: Number.parseInt(status, 10), code })
  return `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n${header}connection: close\r\n\r\n${body}`
}

/** The status and the sentence for a request that is not valid HTTP. It does not quote the request. */
function reasonFor({ code, message }: ConnectionError): [status: string, error: string] {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    return ['408 Request Timeout', 'The request was not complete in time. Send it again.']
  }
  if (code === 'HPE_HEADER_OVERFLOW') {
    const error = 'The headers of the request are longer than 16 kB together. Send fewer or shorter ones.'
    return ['431 Request Header Fields Too Large', error]
  }
  const error = `The data sent is not a valid HTTP request (${message}). Check what the client writes, above all its headers.`
  return ['400 Bad Request', error]
}

/** Refuses an invalid request, and closes its connection. */
export function refuseUnreadable(failure: ConnectionError, socket: Socket): void {
  if (failure.code === 'ECONNRESET' || socket.destroyed) return
  const [status, error] = reasonFor(failure)
  if (socket.writable) socket.write(refusalText(status, 'invalid_request', error))
  socket.destroy(failure)
}
