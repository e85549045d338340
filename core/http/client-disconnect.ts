import type { FastifyReply, FastifyRequest } from 'fastify'
import { OpenSet } from '../system/open-tables.ts'
import { onReaderStall } from './connection-guard.ts'

/** The abort reason if the client disconnected, so nobody needs an answer. */
export class ClientDisconnected extends Error {
  override readonly name = 'ClientDisconnected'
  constructor() {
    super('The client disconnected.')
  }
}

/** Whether a request failed because its client disconnected, possibly in the middle of its body. */
export function isDisconnect(error: unknown, { raw }: FastifyRequest): boolean {
  return error instanceof ClientDisconnected || (error !== null && error === raw.errored)
}

/** Listeners of signals that many requests share, such as a key's. */
const listeners = new WeakMap<AbortSignal, OpenSet<() => void>>()

/** Adds one listener to the signal for all requests, because many are quadratic. @returns removes it */
function onAborted(signal: AbortSignal, listener: () => void): () => void {
  const all = listeners.get(signal) ?? new OpenSet()
  if (!listeners.has(signal)) {
    listeners.set(signal, all)
    const tellAll = () => {
      for (const tell of all) tell()
    }
    signal.addEventListener('abort', tellAll, { once: true })
  }
  all.add(listener)
  return () => void all.delete(listener)
}

/**
 * A signal that is aborted when the client's connection closes before the reply is complete, when the client reads
 * nothing for too long, and when its key is revoked. `request.raw` and Fastify's own `request.signal` cannot be used:
 * both report an end as soon as the body of a POST has been read.
 */
export function clientSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController()
  if (reply.raw.destroyed) controller.abort(new ClientDisconnected())
  const { revoked } = reply.request.caller
  const refuse = () => controller.abort(revoked!.reason)
  if (revoked?.aborted) refuse()
  const forgetKey = revoked && onAborted(revoked, refuse)
  probeHalfClosed(reply, () => {
    if (!reply.raw.headersSent) reply.raw.writeProcessing()
  })
  const forget = onReaderStall(reply.raw.socket, error => controller.abort(error))
  reply.raw.once('close', () => {
    forgetKey?.()
    forget()
    if (!reply.raw.writableFinished) controller.abort(new ClientDisconnected())
  })
  return controller.signal
}

/**
 * Milliseconds between a client's half-close and the first probe, and between all later probes. A client that has
 * disconnected resets the connection at the first probe, but only the next write reports it.
 */
const PROBES = [0, 10, 30, 100, 300, 1000]
const PROBE_INTERVAL_MS = 5000

/**
 * Calls `probe`, which sends something harmless, once the client has closed its side of the connection. A half-closed
 * client and a disconnected one look the same until something is written. If the client has disconnected, the write
 * closes the connection and the reply.
 */
export function probeHalfClosed({ raw, request }: FastifyReply, probe: () => void): void {
  const { socket } = raw
  if (!socket) return
  // Nothing can be sent to an HTTP/1.0 client before its answer, so it counts as disconnected.
  const isOld = request.raw.httpVersion === '1.0'
  let timer: NodeJS.Timeout | undefined
  const send = (count: number) => {
    if (isOld) return void socket.destroy()
    probe()
    timer = setTimeout(
      send,
      count + 1 < PROBES.length ? PROBES[count + 1]! - PROBES[count]! : PROBE_INTERVAL_MS,
      count + 1
    ).unref()
  }
  const begin = () => send(0)
  socket.once('end', begin)
  raw.once('close', () => {
    clearTimeout(timer)
    socket.off('end', begin)
  })
}
