import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { generatedBy } from '../../../core/answers/generated-tokens.ts'
import type { PoolsInUse } from '../../../core/contracts/built-in-services.ts'
import { type HistoryReply, type HistorySample, HistorySchema } from '../../../core/contracts/native-records.ts'
import type { Services } from '../../../core/contracts/services.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { dateAt } from '../../../core/system/clock.ts'

/** Seconds between samples, and their number: an hour, and a day in which each sample is an average of 30. */
const HOUR = { interval: 10, count: 360 }
const DAY = { interval: 300, count: 288 }

/** The samples of the last hour, and their averages of the last day. */
export class History {
  readonly hour: HistorySample[] = []
  readonly day: HistorySample[] = []
  #open: HistorySample[] = []

  add(sample: HistorySample): void {
    push(this.hour, sample, HOUR.count)
    this.#open.push(sample)
    if (this.#open.length * HOUR.interval < DAY.interval) return
    push(this.day, average(this.#open), DAY.count)
    this.#open = []
  }

  /** The samples of a range, with the unfinished one. @param now since the last sample */
  of(range: 'hour' | 'day', now: HistorySample): HistorySample[] {
    return range === 'hour' ? [...this.hour.slice(1 - HOUR.count), now] : [...this.day, average([...this.#open, now])]
  }
}

function push(list: HistorySample[], sample: HistorySample, most: number): void {
  list.push(sample)
  if (list.length > most) list.shift()
}

function average(samples: readonly HistorySample[]): HistorySample {
  const mean = (field: keyof HistorySample, digits = 0) => {
    const known = samples.flatMap(sample => sample[field] ?? [])
    return Number((sum(known) / known.length).toFixed(digits))
  }
  return {
    at: samples.at(-1)!.at,
    running: mean('running', 2),
    queued: mean('queued', 2),
    tokens_per_second: mean('tokens_per_second', 1),
    reserved: mean('reserved'),
    ...(samples.some(({ used }) => used !== undefined) && { used: mean('used') })
  }
}

const sum = (numbers: readonly number[]) => numbers.reduce((total, each) => total + each, 0)

/** Samples the load of the server until `stop`. Idle servers with GPUs do not read the GPUs' memory. */
export function recordHistory({ scheduler, engines, hardware }: Pick<Services, 'scheduler' | 'engines' | 'hardware'>) {
  const history = new History()
  /** By the engine's id. */
  let counted = new Map<string, number>()
  let last = performance.now()

  async function measure(isKept: boolean): Promise<HistorySample> {
    const running = scheduler.running()
    const isCheap = running.length > 0 || hardware.known()?.gpus.length === 0
    const inUse = isCheap ? Object.values(await engines.used().catch((): PoolsInUse => ({}))) : []
    const stats = scheduler.stats()
    const now = performance.now()
    const counts = new Map(running.map(({ engine }) => [engine.id, generatedBy(engine)]))
    const fresh = sum([...counts].map(([id, tokens]) => Math.max(0, tokens - (counted.get(id) ?? 0))))
    const seconds = Math.max(1, (now - last) / 1000)
    if (isKept) [counted, last] = [counts, now]
    return {
      at: Math.round(dateAt(now).getTime() / 1000),
      running: sum(stats.engines.map(engine => engine.running)),
      queued: sum(stats.engines.map(engine => engine.waiting)),
      tokens_per_second: Math.round((10 * fresh) / seconds) / 10,
      reserved: Math.round(sum(Object.values(stats.memory.reserved))),
      ...(inUse.length > 0 && { used: sum(inUse.map(({ used }) => used)) })
    }
  }

  const timer = setInterval(async () => history.add(await measure(true)), HOUR.interval * 1000).unref()
  return {
    stop: () => clearInterval(timer),
    read: async (range: 'hour' | 'day') => history.of(range, await measure(false))
  }
}

export function historyRoute(app: FastifyInstance, { read }: ReturnType<typeof recordHistory>): void {
  nativeRouter(app, 'Server')('GET /history', 'getHistory', 'Show the load of the server over time', {
    role: 'operator',
    querystring: Type.Object({
      range: Type.Optional(Type.Enum(['hour', 'day'], { description: 'In steps of 10 s, or of 5 min; hour if absent' }))
    }),
    response: json('Its samples since the start, in memory only', HistorySchema),
    errors: ['invalid_request'],
    handler: async ({ query: { range = 'hour' } }): Promise<HistoryReply> => {
      const { interval } = range === 'hour' ? HOUR : DAY
      return { interval, samples: await read(range) }
    }
  })
}
