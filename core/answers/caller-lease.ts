import type { FastifyReply } from 'fastify'
import type { LeaseRequest } from '../contracts/leases.ts'
import { GROWN_CONTEXT, unenforcedHeaders } from './answer-headers.ts'

export type CallerLease = Pick<
  LeaseRequest,
  'turn' | 'owner' | 'keyName' | 'bounds' | 'idle' | 'session' | 'onClamped' | 'onGrown' | 'onUnenforcedSchema'
>

/** The lease fields of the caller of a request. The reply lists clamped options in a header. */
export function callerLease(reply: FastifyReply): CallerLease {
  const { caller, headers } = reply.request
  const { turn, owner, name, bounds, idle = false } = caller
  const session = [headers['x-session-id']].flat()[0]
  return {
    turn,
    owner,
    bounds,
    idle,
    ...(name !== undefined && { keyName: name }),
    onClamped(options) {
      const clamped = Object.entries(options).map(([name, value]) => `${name}=${value}`)
      reply.header('x-corral-clamped', clamped.join(', '))
    },
    onGrown: context => void reply.header(GROWN_CONTEXT, context),
    onUnenforcedSchema: pointers => void reply.headers(unenforcedHeaders(pointers)),
    ...(session && { session })
  }
}
