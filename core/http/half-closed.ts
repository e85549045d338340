import type { Server } from 'node:http'
import type { FastifyReply } from 'fastify'

/**
 * Milliseconds after a client ended its side of the connection at which it is probed, and between all further probes. A
 * client that has gone refuses what it is sent, and only the next write after that reports it.
 */
const PROBES = [0, 10, 30, 100, 300, 1000]
const LATER = 5000

/**
 * Lets a server answer clients that end their side of a connection once they have sent their request, as HTTP allows.
 * Whoever works for a request has to find out by `probeHalfClosed` whether its client still reads.
 */
export function allowHalfClosed(server: Server): void {
  // A property of Node.js since 2011 without a place in its types.
  Object.assign(server, { httpAllowHalfOpen: true })
}

/**
 * Calls `probe`, which sends something that does no harm, from when the client has ended its side of the connection: one
 * that has left altogether looks the same until it is written to. Its connection closes then, and so does the reply.
 */
export function probeHalfClosed({ raw, request }: FastifyReply, probe: () => void): void {
  const { socket } = raw
  if (!socket) return
  // Nothing can be sent to a client of HTTP/1.0 before its answer; it counts as gone.
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
