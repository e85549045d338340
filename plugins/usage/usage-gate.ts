import type { FastifyRequest } from 'fastify'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { limitsOf } from '../../core/config/model-settings.ts'
import type { BudgetKind, Caller } from '../../core/contracts/callers.ts'
import type { HookedRequest, PluginHooks } from '../../core/contracts/hooks.ts'
import { type BudgetState, rateLimitHeaders } from '../../core/http/rate-limit-headers.ts'
import { type Budget, budgetsFor, exhausted, rateLimited } from './budgets.ts'
import type { Counters } from './local-counters.ts'
import { type Account, taken, type UsageBooks } from './usage-books.ts'

/** What a request that was let in took from. */
interface Admission {
  budgets: readonly Budget[]
  /** When each of them is refilled, in milliseconds since the epoch: after that nothing is given back. */
  ends: readonly number[]
  /** When the next day begins. */
  tomorrow: number
}

const ONE_REQUEST = Object.freeze(taken({ requests: 1 }))
const REQUEST_BACK = Object.freeze(taken({ requests: -1 }))

/** The name of what callers without a key take together. */
const KEYLESS = '(no key)'

const accountOf = ({ owner, name = KEYLESS }: Caller): Account => ({ owner, name })

/**
 * The one place that decides whether a request is within its budgets, and writes down what it took.
 *
 * A request is counted before it waits for an engine; while budgets of tokens are used up, none is let in. Since it may
 * wait for long, it is asked once more when it has its engine. Its tokens are charged when it is over, whatever became of
 * it. So nobody ever gets more than a budget and what was being answered when that was used up.
 */
export class UsageGate {
  readonly #config: () => CoreConfig
  readonly #books: UsageBooks
  readonly #counters: Counters
  readonly #admitted = new WeakMap<FastifyRequest, Admission>()
  /** Charges that are on their way to a counter elsewhere. */
  readonly #charging = new Set<Promise<unknown>>()

  constructor(config: () => CoreConfig, books: UsageBooks, counters: Counters) {
    this.#config = config
    this.#books = books
    this.#counters = counters
  }

  readonly hooks: PluginHooks = {
    request: hooked => {
      const { record, caller } = hooked.reply.request
      const { model, variant } = record.use!
      const config = this.#config()
      this.#books.add(accountOf(caller), model, ONE_REQUEST)
      const budgets = budgetsFor(caller, model, config.limits, limitsOf(config, variant))
      return budgets.length === 0 ? undefined : this.#admit(hooked, budgets)
    },
    leased: hooked => {
      const admission = this.#admitted.get(hooked.reply.request)
      return admission?.budgets.some(ofTokens) ? this.#recheck(hooked, admission) : undefined
    }
  }

  /** Charges what a request took, once it is over. */
  readonly charge = (request: FastifyRequest): void => {
    const { use, tokens } = request.record
    if (!use) return
    const { prompt, cached, completion } = tokens
    if (prompt === 0 && completion === 0) return
    this.#books.add(
      accountOf(request.caller),
      use.model,
      taken({ tokens_in: prompt, tokens_cached: cached, tokens_out: completion })
    )
    const amounts: Record<BudgetKind, number> = {
      requests: 0,
      tokens: prompt + completion,
      tokens_in: prompt,
      tokens_out: completion
    }
    for (const budget of this.#admitted.get(request)?.budgets ?? []) {
      if (amounts[budget.kind] === 0) continue
      const charging = this.#counters.add(budget, amounts[budget.kind])
      this.#charging.add(charging)
      void charging.finally(() => this.#charging.delete(charging))
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#charging)
    await this.#counters.close()
    await this.#books.flush()
  }

  async #admit(hooked: HookedRequest, budgets: readonly Budget[]): Promise<void> {
    const states = await this.#look(budgets, 1)
    const now = Date.now()
    const ends = states.map(({ reset }) => now + reset)
    const admission = { budgets, ends, tomorrow: now + this.#books.untilTomorrow() }
    this.#refuseExhausted(hooked, admission, states, states)
    hooked.reply.headers(rateLimitHeaders(states, dialectOf(hooked), now))
    this.#admitted.set(hooked.reply.request, admission)
  }

  async #recheck(hooked: HookedRequest, admission: Admission): Promise<void> {
    const states = await this.#look(admission.budgets, 0)
    this.#refuseExhausted(hooked, admission, states, states.filter(ofTokens))
  }

  /** What was taken of budgets. @param requests how many requests are added */
  async #look(budgets: readonly Budget[], requests: number): Promise<BudgetState[]> {
    const counts = await Promise.all(
      budgets.map(budget => this.#counters.add(budget, budget.kind === 'requests' ? requests : 0))
    )
    return budgets.map((budget, at) => ({ ...budget, ...counts[at]! }))
  }

  /**
   * @param deciding those of the states that may refuse it
   * @throws CorralError `rate_limited`; the request is then not counted
   */
  #refuseExhausted(
    hooked: HookedRequest,
    { budgets, ends, tomorrow }: Admission,
    states: readonly BudgetState[],
    deciding: readonly BudgetState[]
  ): void {
    const empty = exhausted(deciding, hooked.operation !== 'tokens')
    if (!empty) return
    const { reply } = hooked
    const { caller, record } = reply.request
    const now = Date.now()
    this.#admitted.delete(reply.request)
    if (now < tomorrow) this.#books.add(accountOf(caller), record.use!.model, REQUEST_BACK)
    for (const [at, budget] of budgets.entries()) {
      if (budget.kind === 'requests' && now < ends[at]!) void this.#counters.add(budget, -1)
    }
    const left = states.map(state => (ofTokens(state) ? state : { ...state, used: state.used - 1 }))
    if (!reply.raw.headersSent) reply.headers(rateLimitHeaders(left, dialectOf(hooked), now))
    throw rateLimited(empty, caller.name, now)
  }
}

const ofTokens = ({ kind }: { kind: BudgetKind }) => kind !== 'requests'
const dialectOf = ({ surface }: HookedRequest) => (surface === 'api-anthropic' ? 'anthropic' : 'openai')
