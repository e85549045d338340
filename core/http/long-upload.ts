import type { IncomingMessage, Server } from 'node:http'
import type { Duplex } from 'node:stream'

/** Milliseconds without a byte after which an upload is given up. */
const SILENCE = 300_000

const uploading = new WeakSet<Duplex>()

/**
 * Lets a request's body take as long as it takes to arrive, while something does arrive: servers end requests that have
 * not arrived after some minutes, which a large file on a slow line has not.
 */
export function takeAnyTime(request: IncomingMessage): void {
  const { socket } = request
  const give = () => request.destroy()
  uploading.add(socket)
  socket.setTimeout(SILENCE, give)
  request.once('close', () => {
    uploading.delete(socket)
    // The time limit itself is Node's to set anew: for an idle connection, and for the next request on it.
    socket.off('timeout', give)
  })
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
