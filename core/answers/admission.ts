import { validateHeaderName, validateHeaderValue } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { settingsFor } from '../config/model-settings.ts'
import type { EngineFields } from '../contracts/engines.ts'
import type { HookedRequest, Operation } from '../contracts/hooks.ts'
import type { Lease, LeaseRequest } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import { hasRole } from '../http/roles.ts'
import { requireAllowed } from '../models/allowed-models.ts'
import { formatModelName, type ModelName, publicModelName } from '../models/model-name.ts'
import { modeFor } from '../models/model-operations.ts'
import { merged } from '../system/collections.ts'
import { CLAMPED_TOKENS, GROWN_CONTEXT, pointerList, unenforcedHeaders } from './answer-headers.ts'
import { withUsableEnd } from './call-arguments.ts'
import { callerLease } from './caller-lease.ts'
import { withReadFiles } from './documents.ts'
import { ContextGrowth } from './grow-context.ts'
import type { AnswerDependencies } from './model-request.ts'
import type { ModelLease, Question } from './question.ts'
import { noteRepeatedCalls } from './repeats.ts'
import { type Asked, enforceRequestLimits, getRequestLimits, growthLimit } from './request-limits.ts'
import { requireToolSupport, withoutFreeformPatterns } from './tool-choice.ts'
import { reportUnknownOptions } from './unknown-options.ts'

export interface Prepared<Request = Question> {
  question: Request
  /** The request as hooks see it; absent if the model is only loaded. */
  hooked: HookedRequest | undefined
  signal: AbortSignal
}

type Readable<Request> = Request & { growth: ContextGrowth | undefined }

/** Completes all steps before the lease. @throws errors of files and hooks */
export async function prepare<Admitted extends Question>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  admitted: Admitted,
  signal: AbortSignal
): Promise<Prepared<Readable<Admitted>>> {
  const question = await readFiles(deps, reply, admitted, admitted.variant, signal)
  const { operation, body, lease, variant } = question
  if (!body) return { question, hooked: undefined, signal }
  const hooked = hookedRequest(deps, operation, body, lease, reply, signal)
  if (deps.hooks.hasRequestFilters()) await deps.hooks.request(hooked)
  const unenforced = deps.engines.providerOf(variant, 'chat')?.unenforced?.(body) ?? []
  if (unenforced.length > 0) reply.headers(unenforcedHeaders(pointerList(unenforced)))
  return { question, hooked, signal }
}

/** Applies limits, and lists unknown options in a header. @throws CorralError `over_limit`, `invalid_option`, … */
export async function admit<Request extends Asked & { lease: ModelLease }>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  asked: Request,
  variant: Model
): Promise<Request & { lease: { model: ModelName } }> {
  const { config, engines, surface } = deps
  const { caller, body: sent, record } = reply.request
  // First, so that clients cannot invent operations for metrics.
  const usual = modeFor(asked.operation, variant)
  const { mode = usual } = asked.lease
  record.use = { surface, operation: asked.operation, model: variant.publicName, variant }
  reply.server.drain.admit(reply)
  requireAllowed(caller.models, asked.lease.model, variant)
  reportUnknownOptions(deps, reply, variant, mode)
  const bounds = getRequestLimits(config, variant, caller)
  const within = withUsableEnd(enforceRequestLimits(asked, bounds, sent))
  let body = within && bounds.repeats > 0 ? noteRepeatedCalls(within) : within
  if (body) {
    if (Number(asked.body?.max_tokens) > Number(body.max_tokens)) reply.header(CLAMPED_TOKENS, `${body.max_tokens}`)
    requireToolSupport(body, variant, settingsFor(config, variant).engine)
    const provider = engines.providerOf(variant, mode)
    try {
      await provider?.check?.(body)
    } catch (error) {
      body = withoutFreeformPatterns(body)
      if (!body) throw error
      await provider!.check!(body)
    }
  }
  // The name is resolved once, so that a change in between cannot switch the request's model.
  const lease = merged(asked.lease, { model: publicModelName(variant), mode })
  // How long a model stays loaded affects all clients. Many clients send the field by default, so it is ignored instead
  // of refused.
  if (lease.keepAlive !== undefined && !hasRole(caller.role, 'operator')) delete lease.keepAlive
  return merged(asked, { body, lease })
}

/** Replaces the files in a request by what engines can read, and decides how its context may grow. */
export async function readFiles<Admitted extends Asked & { lease: ModelLease }>(
  deps: AnswerDependencies,
  reply: FastifyReply,
  admitted: Admitted,
  variant: Model,
  signal: AbortSignal
): Promise<Readable<Admitted>> {
  const body = admitted.body && (await withReadFiles(admitted.body, deps.config, reply, signal))
  const read = merged(admitted, { body })
  return merged(read, { growth: contextGrowth(deps, reply.request, read, variant) })
}

export function hookedRequest(
  { surface }: AnswerDependencies,
  operation: Operation,
  body: EngineFields,
  { model }: ModelLease,
  reply: FastifyReply,
  signal: AbortSignal
): HookedRequest {
  const { caller } = reply.request
  const setHeader = (name: string, value: string) => {
    validateHeaderName(name)
    validateHeaderValue(name, value)
    if (!reply.raw.headersSent) reply.header(name, value)
  }
  return { surface, operation, model: formatModelName(model), body, caller, reply, signal, setHeader }
}

/** Returns how the context of a request grows. Undefined if somebody has set its size, or another server decides it. */
function contextGrowth(
  { config, engines }: AnswerDependencies,
  { caller }: FastifyRequest,
  { lease: { mode = 'chat', options }, body }: Asked & { lease: ModelLease },
  variant: Model
): ContextGrowth | undefined {
  const most = growthLimit(config, variant, caller)
  // The context of a plugin's model is what its plugin says.
  const isLocal = variant.origin.kind !== 'plugin' && engines.providerOf(variant, mode)?.estimate !== undefined
  if (most === undefined || options.num_ctx !== undefined || !isLocal) return undefined
  const { load } = settingsFor(config, variant)
  const usual = { ...load, ...options, num_ctx: Math.min(load.num_ctx, most) }
  const { max_tokens: answer } = body ?? {}
  const limits = { usual, given: options, most, answer: typeof answer === 'number' && answer > 0 ? answer : undefined }
  return new ContextGrowth(limits, body)
}

/**
 * Leases an engine, and runs `use` unless a hook refuses the request. If `use` leaves calls of tools behind, they run
 * without a lease, and `use` continues the answer with another one. @throws as `Scheduler.withLease`
 */
export async function withGrantedLease<Result>(
  { scheduler, hooks }: AnswerDependencies,
  reply: FastifyReply,
  {
    question,
    hooked,
    signal
  }: Prepared<
    { lease: ModelLease & { model: ModelName }; growth: ContextGrowth | undefined } & Pick<Question, 'session'>
  >,
  more: Partial<LeaseRequest> & { mayRetry?: () => boolean },
  use: (lease: Lease) => Promise<Result>
): Promise<Result> {
  const { record } = reply.request
  record.waitBegan = performance.now()
  const { growth, session } = question
  // Tools may have changed something, so only a turn after them may begin again, not the answer.
  const mayRetry = () => (session?.hasRun ? !session.hasSpoken : (more.mayRetry?.() ?? true))
  const request = merged(merged(merged(question.lease, callerLease(reply)), more), { signal, mayRetry })
  const rests: (() => void)[] = []
  try {
    for (;;) {
      const grown = growth?.options.num_ctx
      const options = grown === undefined ? request.options : { ...request.options, ...growth!.options }
      const fewerSlots = growth?.options.num_parallel !== undefined
      const continues = rests.length > 0
      try {
        const result = await scheduler.withLease(merged(request, { options, fewerSlots, continues }), async lease => {
          if (grown !== undefined) reply.header(GROWN_CONTEXT, `${lease.engine.contextSize}`)
          if (continues) {
            record.tokens.another()
            // This answer has used budgets too.
            if (hooked) await hooks.again(hooked)
          } else {
            record.leased = performance.now()
            record.loadDuration = lease.loadDuration
            record.tokens.reset()
            if (hooked) await hooks.leased(hooked)
          }
          const used = await use(lease)
          if (session?.isWaiting) rests.push(lease.rest())
          return used
        })
        if (!session?.isWaiting) return result
        // Other requests can use the slot while the tools run.
        more.onProgress?.({ phase: 'generating', subject: '(running tools)' })
        if (!(await session.work(signal))) return result
      } catch (error) {
        if (!growth || signal.aborted) throw error
        growth.next(error)
      }
    }
  } finally {
    for (const end of rests) end()
  }
}
