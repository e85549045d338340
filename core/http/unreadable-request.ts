import type { Socket } from 'node:net'
import type { ConnectionError } from 'fastify'

/** What to say where a request cannot be read as HTTP; nothing of it is quoted. */
function refusalOf({ code, message }: ConnectionError): { status: number; phrase: string; error: string } {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    return { status: 408, phrase: 'Request Timeout', error: 'The request was not complete in time. Send it again.' }
  }
  if (code === 'HPE_HEADER_OVERFLOW') {
    const error = 'The headers of the request are longer than 16 kB together. Send fewer or shorter ones.'
    return { status: 431, phrase: 'Request Header Fields Too Large', error }
  }
  const error = `What was sent cannot be read as an HTTP request (${message}). Check what the client writes, above all its headers.`
  return { status: 400, phrase: 'Bad Request', error }
}

/** Answers a request that cannot be read, and ends its connection. */
export function refuseUnreadable(failure: ConnectionError, socket: Socket): void {
  if (failure.code === 'ECONNRESET' || socket.destroyed) return
  const { status, phrase, error } = refusalOf(failure)
  const body = JSON.stringify({ error, errorCode: status, code: 'invalid_request' })
  if (socket.writable) {
    socket.write(
      `HTTP/1.1 ${status} ${phrase}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`
    )
  }
  socket.destroy(failure)
}
