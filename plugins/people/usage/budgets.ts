import type { BudgetKind, BudgetName, Budgets, Caller } from '../../../core/contracts/callers.ts'
import { CorralError } from '../../../core/errors.ts'
import { type BudgetState, moment } from '../../../core/http/rate-limit-headers.ts'
import type { UsageRecords } from './usage-records.ts'

export interface Budget {
  readonly name: BudgetName
  readonly kind: BudgetKind
  /** In seconds. A minute starts with its first request, a day at 00:00 UTC. */
  readonly window: typeof MINUTE | typeof DAY
  readonly limit: number
  readonly owner: string
  /** The model it applies to. Absent for all models together. */
  readonly model?: string | undefined
  readonly place: string
}

export const MINUTE = 60
export const DAY = 86_400

const KINDS: readonly BudgetKind[] = ['requests', 'tokens', 'tokens_in', 'tokens_out']
const ALL = KINDS.flatMap(kind => [
  { kind, window: MINUTE, name: `${kind}_per_minute` } as const,
  { kind, window: DAY, name: `${kind}_per_day` } as const
])

/**
 * Returns the budgets that apply to a caller and a model. Over all models: the limits of the key, otherwise `limits`.
 * For this model: the model's section. Callers without a key share one client.
 */
export function budgetsFor(
  { owner, budgets: own }: Pick<Caller, 'owner' | 'budgets'>,
  model: string,
  general: Budgets,
  ofModel: Budgets
): Budget[] {
  const found: Budget[] = []
  for (const { name, kind, window } of ALL) {
    const limit = own?.[name] ?? general[name] ?? 0
    if (limit > 0) found.push({ name, kind, window, limit, owner, place: `${owner} * ${kind}` })
    const limitOfModel = ofModel[name] ?? 0
    if (limitOfModel > 0) {
      found.push({ name, kind, window, limit: limitOfModel, owner, model, place: `${owner} ${model} ${kind}` })
    }
  }
  return found
}

/**
 * Returns the budget that a request exceeds. If it exceeds several, returns the one that is refilled last. Requests are
 * counted before this check, tokens after the answer.
 * @param reads whether the request uses tokens
 */
export function exhausted(states: readonly BudgetState[], reads: boolean): BudgetState | undefined {
  let longest: BudgetState | undefined
  for (const state of states) {
    const { kind, used, limit, reset } = state
    const isUsedUp = kind === 'requests' ? used > limit : reads && used >= limit
    if (isUsedUp && (!longest || reset > longest.reset)) longest = state
  }
  return longest
}

const TAKES: Record<BudgetKind, (limit: number) => string> = {
  requests: limit => `send ${limit} requests`,
  tokens: limit => `use ${limit} tokens`,
  tokens_in: limit => `use ${limit} input tokens`,
  tokens_out: limit => `use ${limit} output tokens`
}

/** @param name of the key, absent for callers without one. @param now milliseconds since the epoch */
export function rateLimited(
  { name: limit, ...state }: BudgetState,
  name: string | undefined,
  now: number
): CorralError {
  const wait = Math.max(1, Math.ceil(state.reset / 1000))
  const who = name === undefined ? 'Callers without a key' : `The API key "${name}"`
  const together = name === undefined ? ' together' : ''
  const of = state.model === undefined ? '' : ` ${state.kind === 'requests' ? 'to' : 'with'} the model "${state.model}"`
  const span = state.window === DAY ? 'day' : 'minute'
  const when = state.window === DAY ? `at ${moment(now + state.reset)}` : `in ${wait} s`
  const message = `${who} may${together} ${TAKES[state.kind](state.limit)}${of} per ${span}, and this budget is used up. It is refilled ${when}: wait until then, or ask the admin of this server for a higher limit (${limit}).`
  return new CorralError('rate_limited', message, { retryAfter: wait, details: { limit, value: state.limit } })
}

export interface Count {
  used: number
  reset: number
}

export interface Counters {
  /** Adds to a budget (0 only reads it) and returns the new count. Never fails. */
  add(budget: Budget, amount: number): Count | Promise<Count>
  close(): Promise<void>
}

const MINUTE_MS = MINUTE * 1000

/**
 * Counts budgets in this server. Daily counts are today's entries of the usage records, so that they survive a restart
 * and a limit that is set during the day applies immediately.
 */
export function localCounters(records: UsageRecords) {
  const minutes = new Map<string, { used: number; end: number }>()

  return {
    add(budget: Budget, amount: number): Count {
      const { owner, model, kind, place } = budget
      if (budget.window === DAY) {
        const { requests, tokens_in, tokens_out } = records.today(owner, model)
        const counts = { requests, tokens: tokens_in + tokens_out, tokens_in, tokens_out }
        return { used: counts[kind], reset: records.untilTomorrow() }
      }
      const now = performance.now()
      let minute = minutes.get(place)
      if (!minute || minute.end <= now) {
        if (amount === 0) return { used: 0, reset: MINUTE_MS }
        for (const [ended, { end }] of minutes) {
          if (end > now) break
          minutes.delete(ended)
        }
        minute = { used: 0, end: now + MINUTE_MS }
        minutes.set(place, minute)
      }
      minute.used += amount
      // The difference of two fractions may be a little more than a minute.
      return { used: minute.used, reset: Math.min(MINUTE_MS, minute.end - now) }
    },
    async close() {}
  }
}
