import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import type { Usage } from '../../../core/contracts/built-in-services.ts'
import type { BudgetKind, Caller } from '../../../core/contracts/callers.ts'
import type { HookedRequest, PluginHooks } from '../../../core/contracts/hooks.ts'
import { type BudgetState, rateLimitHeaders } from '../../../core/http/rate-limit-headers.ts'
import { OpenSet } from '../../../core/system/open-tables.ts'
import { type Budget, budgetsFor, type Count, type Counters, exhausted, rateLimited } from './budgets.ts'
import { type Account, addTo, type Taken, taken, type UsageRecords } from './usage-records.ts'

declare module 'fastify' {
  interface FastifyRequest {
    admission: Admission | undefined
  }
}

interface Admission {
  budgets: readonly Budget[]
  /** When each budget is refilled, in milliseconds since the epoch. Nothing is given back after that. */
  ends: readonly number[]
  tomorrow: number
  charged: Taken
}

const ONE_REQUEST = Object.freeze(taken({ requests: 1 }))
const NOTHING = Object.freeze(taken())
const REQUEST_BACK = Object.freeze(taken({ requests: -1 }))

const KEYLESS = '(no key)'

const accountOf = ({ owner, gateway = owner, name = KEYLESS }: Caller): Account => ({ owner: gateway, name })

/**
 * Decides whether a request is within its budgets, and records its usage.
 *
 * A request is counted before it waits for an engine. While a token budget is used up, all requests are refused. Since
 * the wait may be long, budgets are checked again when the request gets its engine. Tokens are charged when the request
 * ends, however it ends. So a client can exceed a budget at most by the answers that were running when it was used up.
 */
export class RateLimits implements Usage {
  readonly #config: () => CoreConfig
  readonly #records: UsageRecords
  readonly #counters: Counters
  /** Requests with budgets that have an engine, or had one a moment ago. */
  readonly #answering = new OpenSet<FastifyRequest>()
  /** Charges on their way to a remote counter. */
  readonly #charging = new Set<Promise<unknown>>()

  constructor(config: () => CoreConfig, records: UsageRecords, counters: Counters) {
    this.#config = config
    this.#records = records
    this.#counters = counters
  }

  readonly hooks: PluginHooks = {
    request: hooked => {
      const { caller, reply } = hooked
      const { model, variant } = reply?.request.record.use ?? { model: hooked.model, variant: undefined }
      const config = this.#config()
      this.#records.add(accountOf(caller), model, ONE_REQUEST)
      const { gateway } = caller
      const ofModel = variant && gateway === undefined ? settingsFor(config, variant).budgets : {}
      const of = gateway === undefined ? caller : { ...caller, owner: gateway }
      const budgets = budgetsFor(of, model, gateway === undefined ? config.limits : {}, ofModel)
      return budgets.length === 0 ? undefined : this.#admit(hooked, budgets)
    },
    leased: hooked => this.#checkAgain(hooked),
    again: hooked => this.#checkAgain(hooked)
  }

  attach(app: FastifyInstance): void {
    app.decorateRequest('admission', undefined)
    app.onRequestEnd(request => {
      this.#answering.delete(request)
      this.charge(request)
    })
  }

  charge(request: FastifyRequest): void {
    const { record, admission } = request
    const { use, tokens } = record
    if (!use) return
    const charged = admission?.charged ?? NOTHING
    const tokens_in = Math.max(0, tokens.prompt - charged.tokens_in)
    const tokens_cached = Math.max(0, tokens.cached - charged.tokens_cached)
    const tokens_out = Math.max(0, tokens.completion - charged.tokens_out)
    if (tokens_in === 0 && tokens_out === 0) return
    const more = { requests: 0, tokens_in, tokens_cached, tokens_out }
    this.#records.add(accountOf(request.caller), use.model, more)
    if (!admission) return
    admission.charged = addTo({ ...charged }, more)
    const amounts: Record<BudgetKind, number> = { requests: 0, tokens: tokens_in + tokens_out, tokens_in, tokens_out }
    for (const budget of admission.budgets) {
      if (amounts[budget.kind] === 0) continue
      const charging = this.#counters.add(budget, amounts[budget.kind])
      if (!(charging instanceof Promise)) continue
      this.#charging.add(charging)
      void charging.finally(() => this.#charging.delete(charging))
    }
  }

  async budgetsOf(caller: Caller): Promise<BudgetState[]> {
    return await this.#look(budgetsFor(caller, '', this.#config().limits, {}), 0)
  }

  async close(): Promise<void> {
    await Promise.all(this.#charging)
    await this.#counters.close()
    await this.#records.close()
  }

  #admit(hooked: HookedRequest, budgets: readonly Budget[]): Promise<void> | undefined {
    // Taken before the counts are read, so that refill times are never too late.
    const now = Date.now()
    const moment = performance.now()
    const tomorrow = now + this.#records.untilTomorrow()
    return soon(this.#look(budgets, 1), states => {
      const ends = states.map(({ reset }) => moment + reset)
      const admission: Admission = { budgets, ends, tomorrow, charged: NOTHING }
      this.#refuseExhausted(hooked, admission, { now, states, deciding: states })
      const { reply } = hooked
      if (!reply) return
      reply.headers(rateLimitHeaders(states, dialectOf(hooked), now))
      reply.request.admission = admission
    })
  }

  #checkAgain(hooked: HookedRequest): Promise<void> | undefined {
    const request = hooked.reply?.request
    const { admission } = request ?? {}
    return request && admission?.budgets.some(ofTokens) ? this.#recheck(hooked, request, admission) : undefined
  }

  #recheck(hooked: HookedRequest, asking: FastifyRequest, admission: Admission): Promise<void> | undefined {
    // The request that freed this slot may not have been charged yet.
    for (const request of this.#answering) if (request.record.answered !== undefined) this.charge(request)
    this.#answering.add(asking)
    const now = Date.now()
    return soon(this.#look(admission.budgets, 0), states =>
      this.#refuseExhausted(hooked, admission, { now, states, deciding: states.filter(ofTokens) })
    )
  }

  /** Reads the budgets. @param requests number of requests to add */
  #look(budgets: readonly Budget[], requests: number): BudgetState[] | Promise<BudgetState[]> {
    const counts = budgets.map(budget => this.#counters.add(budget, budget.kind === 'requests' ? requests : 0))
    const states = (counts: readonly Count[]) =>
      budgets.map(({ name, kind, window, model, limit }, at): BudgetState => {
        const { used, reset } = counts[at]!
        return { name, kind, window, model, limit, used, reset }
      })
    return counts.some(count => count instanceof Promise) ? Promise.all(counts).then(states) : states(counts as Count[])
  }

  /** @param deciding the budgets that may refuse @throws CorralError `rate_limited`; the request is then not counted */
  #refuseExhausted(
    hooked: HookedRequest,
    { budgets, ends, tomorrow }: Admission,
    { now, states, deciding }: { now: number; states: readonly BudgetState[]; deciding: readonly BudgetState[] }
  ): void {
    const empty = exhausted(deciding, hooked.operation !== 'tokens')
    if (!empty) return
    const { reply, caller } = hooked
    const model = reply?.request.record.use?.model ?? hooked.model
    if (reply) {
      reply.request.admission = undefined
      this.#answering.delete(reply.request)
    }
    if (Date.now() < tomorrow) this.#records.add(accountOf(caller), model, REQUEST_BACK)
    for (const [at, budget] of budgets.entries()) {
      if (budget.kind === 'requests' && performance.now() < ends[at]!) void this.#counters.add(budget, -1)
    }
    const left = states.map(state => (ofTokens(state) ? state : { ...state, used: state.used - 1 }))
    if (reply && !reply.raw.headersSent) reply.headers(rateLimitHeaders(left, dialectOf(hooked), now))
    throw rateLimited(empty, caller.name, now)
  }
}

/** Calls `next` with the value, synchronously unless there is something to wait for. */
function soon<Value>(value: Value | Promise<Value>, next: (value: Value) => void): Promise<void> | undefined {
  if (value instanceof Promise) return value.then(next)
  next(value)
  return undefined
}

const ofTokens = ({ kind }: { kind: BudgetKind }) => kind !== 'requests'
const dialectOf = ({ surface }: HookedRequest) => (surface === 'api-anthropic' ? 'anthropic' : 'openai')
