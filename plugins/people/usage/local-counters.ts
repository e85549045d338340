import { type Budget, DAY, MINUTE } from './budgets.ts'
import type { UsageRecords } from './usage-records.ts'

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
