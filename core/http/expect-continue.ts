import type { IncomingMessage, Server, ServerResponse } from 'node:http'

/** Requests whose clients wait for `100 Continue` before they send the body. */
const waiting = new WeakMap<IncomingMessage, ServerResponse>()

/** Sends `100 Continue` only when `sendContinue` is called. By default Node.js would ask for every body immediately. */
export function holdContinue(server: Server): void {
  server.on('checkContinue', (request, response) => {
    waiting.set(request, response)
    server.emit('request', request, response)
  })
}

/** Asks a client that waits for it to send the body of its request. */
export function sendContinue(request: IncomingMessage): void {
  const response = waiting.get(request)
  waiting.delete(request)
  if (response && !response.headersSent) response.writeContinue()
}
