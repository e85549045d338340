import type { IncomingMessage, Server } from 'node:http'
import type { Duplex } from 'node:stream'

const uploading = new WeakSet<Duplex>()

/**
 * Lets a request's body take as long as it takes to arrive: servers end requests that have not arrived after some
 * minutes, which a large file on a slow line has not. Whoever reads it has to give it up when too little arrives.
 */
export function takeAnyTime(request: IncomingMessage): void {
  const { socket } = request
  uploading.add(socket)
  request.once('close', () => uploading.delete(socket))
}

/** Whether a connection's request may take any time to arrive. */
export function mayTakeAnyTime(socket: Duplex): boolean {
  return uploading.has(socket)
}

/** Lets `takeAnyTime` work on a server. Call it once the server's own listeners are there. */
export function allowLongUploads(server: Server): void {
  const listeners = server.listeners('clientError') as ((error: Error, socket: Duplex) => void)[]
  server.removeAllListeners('clientError')
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) => {
    if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT' && uploading.has(socket)) return
    for (const listener of listeners) listener.call(server, error, socket)
  })
}
