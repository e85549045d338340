import { RateLimiterMemory } from 'rate-limiter-flexible'
import { type Budget, DAY, MINUTE } from './budgets.ts'
import type { Taken, UsageBooks } from './usage-books.ts'

/** What was taken of a budget. */
export interface Count {
  used: number
  /** Milliseconds until it is refilled. */
  reset: number
}

/** Counts what is taken of budgets. */
export interface Counters {
  /** Adds to what was taken of a budget (0 only looks) and tells what that comes to. Never rejects. */
  add(budget: Budget, amount: number): Promise<Count>
  close(): Promise<void>
}

/** Where something is counted, without the day. */
export const placeOf = ({ owner, model, kind }: Budget) => `${owner} ${model ?? '*'} ${kind}`

export const NO_LIMIT = { points: Number.MAX_SAFE_INTEGER, duration: MINUTE }

/**
 * Counts of this server. Those of a day are what the books say of today, who are told of everything anyway: so they
 * outlive a restart, and hold at once where a limit is set in the middle of a day.
 */
export function localCounters(books: UsageBooks): Counters {
  const minutes = new RateLimiterMemory(NO_LIMIT)
  return {
    async add(budget, amount) {
      if (budget.window === DAY) {
        return { used: usedOf(books.today(budget.owner, budget.model), budget), reset: books.untilTomorrow() }
      }
      const place = placeOf(budget)
      const found = amount === 0 ? await minutes.get(place) : await minutes.penalty(place, amount)
      return countOf(found)
    },
    async close() {}
  }
}

/** A minute that has not begun is whole. The clock may have been set meanwhile. */
export function countOf(found: { consumedPoints: number; msBeforeNext: number } | null): Count {
  if (!found) return { used: 0, reset: MINUTE * 1000 }
  return { used: found.consumedPoints, reset: Math.min(Math.max(0, found.msBeforeNext), DAY * 1000) }
}

function usedOf({ requests, tokens_in, tokens_out }: Readonly<Taken>, { kind }: Budget): number {
  return { requests, tokens_in, tokens_out, tokens: tokens_in + tokens_out }[kind]
}
