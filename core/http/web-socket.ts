import type { FastifyReply, FastifyRequest } from 'fastify'
import type { WebSocket } from 'ws'
import { CorralError } from '../errors.ts'

/** The listeners of Node.js's HTTP server on a connection, which would mistake frames for requests. */
const HTTP_EVENTS = ['data', 'end', 'drain', 'timeout']

/**
 * Makes a connection a WebSocket. The request stays in progress until it closes, so that all limits of connections
 * apply. Node.js's event `upgrade` is not used: with a listener, ordinary requests that offer an upgrade would lose their
 * bodies. Java's client sends such requests.
 * @param maxBytes of a message
 * @throws CorralError `websocket_refused` if the client did not ask for one
 */
export async function acceptWebSocket(
  { raw }: FastifyRequest,
  reply: FastifyReply,
  maxBytes: number
): Promise<WebSocket> {
  const { headers, socket } = raw
  const key = headers['sec-websocket-key'] ?? ''
  if (headers.upgrade?.toLowerCase() !== 'websocket' || !/^[+/0-9A-Za-z]{22}==$/.test(key)) {
    throw new CorralError('websocket_refused', 'This path is only for WebSockets. Connect to it with wss:// or ws://.')
  }
  const { WebSocketServer } = await import('ws')
  const server = new WebSocketServer({ noServer: true, clientTracking: false, maxPayload: maxBytes })
  reply.hijack()
  reply.raw.statusCode = 101
  for (const event of HTTP_EVENTS) socket.removeAllListeners(event)
  return await new Promise((resolve, reject) => {
    socket.once('close', () => reject(new Error('The client disconnected.')))
    server.handleUpgrade(raw, socket, Buffer.alloc(0), resolve)
  })
}
