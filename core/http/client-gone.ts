import type { FastifyReply, FastifyRequest } from 'fastify'
import { OpenSet } from '../system/open-tables.ts'
import { onReaderStall } from './connection-guard.ts'
import { probeHalfClosed } from './half-closed.ts'

/** The reason of a signal whose client went away: there is no one to answer. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone'
  constructor() {
    super('The client went away.')
  }
}

/** Whether a request failed because its client went away, perhaps in the middle of its body. */
export function isGone(error: unknown, { raw }: FastifyRequest): boolean {
  return error instanceof ClientGone || (error !== null && error === raw.errored)
}

/** Those who listen to a signal of many requests, such as that of a key. */
const listeners = new WeakMap<AbortSignal, OpenSet<() => void>>()

/**
 * Has one listener of a signal tell all of them, since a signal looks through all that it has for each further one.
 * @returns forgets this one
 */
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
 * Aborted when the client's connection closes before the reply is complete, when it reads nothing of it for too long, and
 * when its key is revoked. `request.raw`
 * and Fastify's own `request.signal` are no use here: both report an end as soon as the body of a POST has been read.
 */
export function clientSignal(reply: FastifyReply): AbortSignal {
  const controller = new AbortController()
  if (reply.raw.destroyed) controller.abort(new ClientGone())
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
    if (!reply.raw.writableFinished) controller.abort(new ClientGone())
  })
  return controller.signal
}
