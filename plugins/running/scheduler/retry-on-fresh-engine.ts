import type { FastifyBaseLogger } from 'fastify'
import type { Lease, Scheduler } from '../../../core/contracts/leases.ts'
import { CorralError, type ErrorCode, errorCodes } from '../../../core/errors.ts'

/** Maximum number of engines for one request, including engines that ended before it was sent. */
const MAX_ATTEMPTS = 4

/** Failures that another attempt may not have. */
const ENGINE_LOST: readonly ErrorCode[] = errorCodes('engine_crashed engine_unreachable')

/**
 * Returns `withLease`, which leases an engine, uses it and releases it. If the engine crashes before anything was sent
 * to the client, the request is tried once more on a fresh engine. A background request that lost its slot to a client
 * waits for another one.
 */
export function retryOnFreshEngine(lease: Scheduler['lease'], log: FastifyBaseLogger): Scheduler['withLease'] {
  return async (request, use) => {
    let tried = 0
    for (let attempt = 1; ; attempt++) {
      const leased = await lease(request)
      try {
        return await use(leased)
      } catch (error) {
        const mayRetry = !request.signal.aborted && (request.mayRetry?.() ?? true)
        if (isDisplaced(leased) && mayRetry) {
          attempt = 0
          continue
        }
        const crashed = error instanceof CorralError && ENGINE_LOST.includes(error.code) && error.retryable
        // A request that still waited inside the engine has not been tried.
        if (!crashed || error.details?.sent !== false) tried++
        if (!crashed || tried > 1 || attempt >= MAX_ATTEMPTS || !mayRetry) throw error
        const { publicName: model } = leased.variant
        log.warn({ model, reason: error.message }, 'the engine did not answer, so a fresh one gets the request')
      } finally {
        leased.release()
      }
    }
  }
}

/** Whether a background request lost its lease to a client. */
function isDisplaced({ signal: { aborted, reason } }: Lease): boolean {
  return aborted && reason instanceof CorralError && reason.details?.displaced === true
}
