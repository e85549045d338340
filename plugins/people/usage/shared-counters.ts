import type { FastifyBaseLogger } from 'fastify'
import { RateLimiterRedis } from 'rate-limiter-flexible'
import { errorMessage } from '../../../core/errors.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import { type Budget, type Count, type Counters, DAY, type localCounters, MINUTE } from './budgets.ts'
import { dateOf } from './usage-records.ts'

/** How long to wait for an answer of Redis, in milliseconds. The wait delays requests. */
const MAX_WAIT_MS = 2000
const RETRY_INTERVAL_MS = 1000
/** How long daily counts are kept after the day, since the clocks of several servers differ (seconds). */
const EXTRA_LIFETIME_SECONDS = 600

interface Debt {
  readonly budget: Budget
  amount: number
  /** When the debt expires, in milliseconds since the epoch. */
  readonly until: number
}

/**
 * Counts budgets for all servers that share a Redis or Valkey.
 *
 * Requests continue while Redis does not answer, and each server counts on its own. Budgets share capacity among people
 * who have keys, and must not stop all of them. During that time each server allows at most one whole budget. The
 * counts are added to Redis when it answers again.
 *
 * @param url as `redis://…` or `rediss://…`
 * @param local counters of this server
 */
export async function sharedCounters(
  url: string,
  local: ReturnType<typeof localCounters>,
  log: Pick<FastifyBaseLogger, 'error' | 'info'>
): Promise<Counters> {
  const { Redis } = await import('ioredis')
  const client = new Redis(url, {
    lazyConnect: true,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 2 * MAX_WAIT_MS,
    retryStrategy: attempt => Math.min(100 * attempt, RETRY_INTERVAL_MS)
  })
  const where = new URL(url).host
  const limiter = new RateLimiterRedis({
    points: Number.MAX_SAFE_INTEGER,
    duration: MINUTE,
    storeClient: client,
    keyPrefix: 'corral'
  })
  const debts = new Map<string, Debt>()
  let looking: NodeJS.Timeout | undefined
  let lastFault = ''

  const keyOf = ({ place, window }: Budget) => (window === DAY ? `${place} ${dateOf(Date.now())}` : place)

  async function count(key: string, budget: Budget, amount: number): Promise<Count> {
    const customDuration = budget.window === DAY ? DAY + EXTRA_LIFETIME_SECONDS : MINUTE
    const found = await inTime(amount === 0 ? limiter.get(key) : limiter.penalty(key, amount, { customDuration }))
    // A minute that has not started is unused.
    if (!found) return { used: 0, reset: MINUTE * 1000 }
    // The clock may have been changed since.
    return { used: found.consumedPoints, reset: Math.min(Math.max(0, found.msBeforeNext), DAY * 1000) }
  }

  function goOnAlone(error: unknown): void {
    if (looking) return
    log.error(
      `The Redis at ${where} does not answer (${lastFault || errorMessage(error)}). Until it does, this server counts budgets on its own and continues to answer.`
    )
    looking = setInterval(() => void comeBack(), RETRY_INTERVAL_MS).unref()
  }

  async function comeBack(): Promise<void> {
    try {
      await inTime(client.ping())
      for (const [key, { budget, amount, until }] of debts) {
        debts.delete(key)
        if (performance.now() > until) continue
        await count(key, budget, amount).catch(error => {
          owe(key, budget, amount)
          throw error
        })
      }
    } catch {
      return
    }
    if (!looking) return
    clearInterval(looking)
    looking = undefined
    lastFault = ''
    log.info(`The Redis at ${where} answers again. Counts made in the meantime are added to it.`)
  }

  function owe(key: string, budget: Budget, amount: number): void {
    const debt = debts.get(key)
    if (debt) debt.amount += amount
    else debts.set(key, { budget, amount, until: performance.now() + budget.window * 1000 })
  }

  client.on('error', error => {
    lastFault = errorMessage(error) || lastFault
  })
  await client.connect().catch(goOnAlone)
  return {
    async add(budget, amount) {
      const key = keyOf(budget)
      const own = local.add(budget, 0)
      if (!looking) {
        try {
          const found = await count(key, budget, amount)
          return budget.window === DAY ? { used: found.used, reset: own.reset } : found
        } catch (error) {
          goOnAlone(error)
        }
      }
      if (amount === 0) return own
      owe(key, budget, amount)
      return local.add(budget, amount)
    },
    async close() {
      clearInterval(looking)
      client.disconnect()
    }
  }
}

/** Waits for an answer of Redis up to the timeout. @throws Error */
function inTime<T>(answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`it took longer than ${formatDuration(MAX_WAIT_MS)}`))
    // If this process was busy, the answer may already be there. setImmediate lets it be read first.
    const timer = setTimeout(() => setImmediate(late), MAX_WAIT_MS)
    answer.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
