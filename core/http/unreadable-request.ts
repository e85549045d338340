import type { Socket } from 'node:net'
import type { ConnectionError } from 'fastify'

/** The refusal of a request that is not valid HTTP. It quotes nothing of the request. */
function refusalOf({ code, message }: ConnectionError): { status: number; phrase: string; error: string } {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    return { status: 408, phrase: 'Request Timeout', error: 'The request was not complete in time. Send it again.' }
  }
  if (code === 'HPE_HEADER_OVERFLOW') {
    const error = 'The headers of the request are longer than 16 kB together. Send fewer or shorter ones.'
    return { status: 431, phrase: 'Request Header Fields Too Large', error }
  }
  const error = `The data sent is not a valid HTTP request (${message}). Check what the client writes, above all its headers.`
  return { status: 400, phrase: 'Bad Request', error }
}

/** Refuses an invalid request, and closes its connection. */
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
