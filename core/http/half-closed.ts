import type { Server } from 'node:http'
import type { FastifyReply } from 'fastify'

/**
 * Milliseconds between a client's half-close and the first probe, and between all later probes. A client that has
 * disconnected resets the connection at the first probe, but only the next write reports it.
 */
const PROBES = [0, 10, 30, 100, 300, 1000]
const LATER = 5000

/**
 * Lets a server answer clients that close their side of a connection after the request, as HTTP allows. Code that works
 * for a request must use `probeHalfClosed` to find out whether its client still reads.
 */
export function allowHalfClosed(server: Server): void {
  // A property of Node.js since 2011 that its types lack.
  Object.assign(server, { httpAllowHalfOpen: true })
}

/**
 * Calls `probe`, which sends something harmless, once the client has closed its side of the connection. A client that
 * has disconnected looks the same until something is written to it. Its connection closes then, and so does the reply.
 */
export function probeHalfClosed({ raw, request }: FastifyReply, probe: () => void): void {
  const { socket } = raw
  if (!socket) return
  // Nothing can be sent to a client of HTTP/1.0 before its answer, so it counts as disconnected.
  const isOld = request.raw.httpVersion === '1.0'
  let timer: NodeJS.Timeout | undefined
  const send = (count: number) => {
    if (isOld) return void socket.destroy()
    probe()
    timer = setTimeout(send, count + 1 < PROBES.length ? PROBES[count + 1]! - PROBES[count]! : LATER, count + 1).unref()
  }
  const begin = () => send(0)
  socket.once('end', begin)
  raw.once('close', () => {
    clearTimeout(timer)
    socket.off('end', begin)
  })
}
