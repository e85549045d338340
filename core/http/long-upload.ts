import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'

const uploading = new WeakSet<Duplex>()

/**
 * Lets a request's body take any time to arrive. By default servers end requests that have not arrived after some
 * minutes, but a large file on a slow connection takes longer. The code that reads the body must abort it if it stalls.
 */
export function removeUploadTimeout(request: IncomingMessage): void {
  const { socket } = request
  uploading.add(socket)
  request.once('close', () => uploading.delete(socket))
}

/** Whether a connection's request may take any time to arrive. */
export function hasNoUploadTimeout(socket: Duplex): boolean {
  return uploading.has(socket)
}

/** Enables `removeUploadTimeout` on a server. Call it after the server's own listeners were added. */
export function allowLongUploads(server: Server): void {
  const listeners = server.listeners('clientError') as ((error: Error, socket: Duplex) => void)[]
  server.removeAllListeners('clientError')
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) => {
    if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT' && uploading.has(socket)) return
    for (const listener of listeners) listener.call(server, error, socket)
  })
}

/** Requests whose clients wait for `100 Continue` before they send the body. */
const waiting = new WeakMap<IncomingMessage, ServerResponse>()

/** Sends `100 Continue` only when `sendContinue` is called. By default Node.js would ask for every body immediately. */
export function holdContinue(server: Server): void {
  server.on('checkContinue', (request, response) => {
    waiting.set(request, response)
    server.emit('request', request, response)
  })
}

/** Asks a client that waits for `100 Continue` to send the body of its request. */
export function sendContinue(request: IncomingMessage): void {
  const response = waiting.get(request)
  waiting.delete(request)
  if (response && !response.headersSent) response.writeContinue()
}
