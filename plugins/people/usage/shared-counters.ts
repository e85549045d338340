import type { FastifyBaseLogger } from 'fastify'
import { RateLimiterRedis } from 'rate-limiter-flexible'
import { errorMessage } from '../../../core/errors.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import { type Budget, DAY, MINUTE } from './budgets.ts'
import type { Count, Counters, LocalCounters } from './local-counters.ts'
import { dateOf } from './usage-books.ts'

/** How long Redis may take for an answer (milliseconds): requests wait for it. */
const PATIENCE = 2000
const NO_LIMIT = { points: Number.MAX_SAFE_INTEGER, duration: MINUTE }
/** How often a Redis that does not answer is asked again (milliseconds). */
const LOOK_INTERVAL = 1000
/** How long counts of a day stay after it: clocks of several servers are not the same (seconds). */
const SPARE = 600

interface Debt {
  readonly budget: Budget
  amount: number
  /** After that it is of no more use; milliseconds since the epoch. */
  readonly until: number
}

/**
 * Counts of all servers that use the same Redis or Valkey.
 *
 * While it does not answer, requests go on, and each server counts what it sees by itself: budgets share out what there
 * is among people who have keys, and are no reason for all of them to stop working. So each server then allows no more
 * than a whole budget. What was taken meanwhile is added in Redis when it answers again.
 *
 * @param url as `redis://…` or `rediss://…`
 * @param local counts of this server
 */
export async function sharedCounters(
  url: string,
  local: LocalCounters,
  log: Pick<FastifyBaseLogger, 'error' | 'info'>
): Promise<Counters> {
  // Only loaded where it is used.
  const { Redis } = await import('ioredis')
  const client = new Redis(url, {
    lazyConnect: true,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 2 * PATIENCE,
    retryStrategy: attempt => Math.min(100 * attempt, LOOK_INTERVAL)
  })
  const where = new URL(url).host
  const limiter = new RateLimiterRedis({ ...NO_LIMIT, storeClient: client, keyPrefix: 'corral' })
  const debts = new Map<string, Debt>()
  /** Looks for Redis while it does not answer. */
  let looking: NodeJS.Timeout | undefined
  let lastFault = ''

  const keyOf = ({ place, window }: Budget) => (window === DAY ? `${place} ${dateOf(Date.now())}` : place)

  async function count(key: string, budget: Budget, amount: number): Promise<Count> {
    const customDuration = budget.window === DAY ? DAY + SPARE : MINUTE
    return countOf(await inTime(amount === 0 ? limiter.get(key) : limiter.penalty(key, amount, { customDuration })))
  }

  function goOnAlone(error: unknown): void {
    if (looking) return
    log.error(
      `The Redis at ${where} does not answer (${lastFault || errorMessage(error)}). Until it does, this server counts what is taken of budgets by itself, and goes on answering.`
    )
    looking = setInterval(() => void comeBack(), LOOK_INTERVAL).unref()
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
    log.info(`The Redis at ${where} answers again; what was taken of budgets meanwhile is added there.`)
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

/** A minute that has not begun is whole. The clock may have been set meanwhile. */
function countOf(found: { consumedPoints: number; msBeforeNext: number } | null): Count {
  if (!found) return { used: 0, reset: MINUTE * 1000 }
  return { used: found.consumedPoints, reset: Math.min(Math.max(0, found.msBeforeNext), DAY * 1000) }
}

/** Waits for an answer of Redis, but not for ever. @throws Error */
function inTime<T>(answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`it took longer than ${formatDuration(PATIENCE)}`))
    // Where this process was busy itself, the answer may be there and only has to be read, which is done before that.
    const timer = setTimeout(() => setImmediate(late), PATIENCE)
    answer.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
