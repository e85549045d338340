import type { FastifyReply } from 'fastify'
import type { Lease, LeaseRequest } from '../contracts/leases.ts'
import type { ModelName } from '../models/model-name.ts'
import { merged } from '../system/collections.ts'
import type { Prepared } from './admission.ts'
import { GROWN_CONTEXT, unenforcedHeaders } from './answer-headers.ts'
import type { ContextGrowth } from './grow-context.ts'
import type { AnswerDependencies, CallerLease, ModelLease } from './question.ts'

/** The lease fields of the caller of a request. The reply lists clamped options in a header. */
export function callerLease(reply: FastifyReply): CallerLease {
  const { caller, headers } = reply.request
  const { turn, owner, bounds, idle = false } = caller
  const session = [headers['x-session-id']].flat()[0]
  return {
    turn,
    owner,
    bounds,
    idle,
    onClamped(options) {
      const clamped = Object.entries(options).map(([name, value]) => `${name}=${value}`)
      reply.header('x-corral-clamped', clamped.join(', '))
    },
    onGrown: context => void reply.header(GROWN_CONTEXT, context),
    onUnenforcedSchema: pointers => void reply.headers(unenforcedHeaders(pointers)),
    ...(session && { session })
  }
}

/** Leases an engine, and runs `use` unless a hook refuses the request. @throws as `Scheduler.withLease` */
export async function withGrantedLease<Result>(
  { scheduler, hooks }: AnswerDependencies,
  reply: FastifyReply,
  {
    question,
    hooked,
    signal
  }: Prepared<{ lease: ModelLease & { model: ModelName }; growth: ContextGrowth | undefined }>,
  more: Partial<LeaseRequest> & { mayRetry?: () => boolean },
  use: (lease: Lease) => Promise<Result>
): Promise<Result> {
  const { record } = reply.request
  record.waitBegan = performance.now()
  const request = merged(merged(merged(question.lease, callerLease(reply)), more), { signal })
  const { growth } = question
  for (;;) {
    const grown = growth?.options.num_ctx
    const options = grown === undefined ? request.options : { ...request.options, ...growth!.options }
    try {
      return await scheduler.withLease(
        merged(request, { options, fewerSlots: growth?.options.num_parallel !== undefined }),
        async lease => {
          record.leased = performance.now()
          record.loadDuration = lease.loadDuration
          record.tokens.reset()
          if (grown !== undefined) reply.header(GROWN_CONTEXT, `${lease.engine.contextSize}`)
          if (hooked) await hooks.leased(hooked)
          return await use(lease)
        }
      )
    } catch (error) {
      if (!growth || signal.aborted) throw error
      growth.next(error)
    }
  }
}
