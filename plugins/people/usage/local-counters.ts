import { type Budget, DAY, MINUTE } from './budgets.ts'
import type { Taken, UsageRecords } from './usage-records.ts'

/** The used part of a budget. */
export interface Count {
  used: number
  /** Milliseconds until it is refilled. */
  reset: number
}

export interface Counters {
  /** Adds to a budget (0 only reads it) and returns the new count. Never fails. */
  add(budget: Budget, amount: number): Count | Promise<Count>
  close(): Promise<void>
}

const MINUTE_MS = MINUTE * 1000

/** Counters of this server, which answer synchronously. */
export interface LocalCounters extends Counters {
  add(budget: Budget, amount: number): Count
}

/**
 * Counts budgets in this server. Daily counts are today's entries in the usage ledger, so that they survive a restart
 * and a limit that is set during the day applies immediately.
 */
export function localCounters(records: UsageRecords): LocalCounters {
  /** Minutes that have started, oldest first. */
  const minutes = new Map<string, { used: number; end: number }>()

  function minuteOf(place: string, now: number) {
    const minute = minutes.get(place)
    return minute && minute.end > now ? minute : undefined
  }

  function forgetEnded(now: number): void {
    for (const [place, { end }] of minutes) {
      if (end > now) return
      minutes.delete(place)
    }
  }

  return {
    add(budget, amount) {
      if (budget.window === DAY) {
        return { used: usedOf(records.today(budget.owner, budget.model), budget), reset: records.untilTomorrow() }
      }
      const now = performance.now()
      const { place } = budget
      let minute = minuteOf(place, now)
      if (!minute) {
        if (amount === 0) return { used: 0, reset: MINUTE_MS }
        forgetEnded(now)
        minute = { used: 0, end: now + MINUTE_MS }
        minutes.delete(place)
        minutes.set(place, minute)
      }
      minute.used += amount
      return { used: minute.used, reset: minute.end - now }
    },
    async close() {}
  }
}

function usedOf({ requests, tokens_in, tokens_out }: Readonly<Taken>, { kind }: Budget): number {
  if (kind === 'tokens') return tokens_in + tokens_out
  if (kind === 'requests') return requests
  return kind === 'tokens_in' ? tokens_in : tokens_out
}
