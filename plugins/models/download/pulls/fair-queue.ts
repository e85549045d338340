import { CorralError } from '../../../../core/errors.ts'

interface FairQueueOptions {
  /** Places for work, and for entries that wait. */
  places: number
  waiting: number
  /**
   * Milliseconds after which a place is given up for a client that has none. Places beyond a client's share are given
   * up immediately. If undefined, work is never interrupted.
   */
  turnLength: number | undefined
}

export interface Place {
  /** The client that it belongs to (`Caller.turn`). */
  readonly client: string
  /** Resolves when the work may start. @throws CorralError `rate_limited` if another client gets the place */
  readonly begun: Promise<void>
  readonly isWaiting: boolean
  /** Aborted when the work must stop for another client and queue again. */
  readonly yielding: AbortSignal
  /** Call this when the work has ended or is no longer wanted. */
  leave(): void
}

function countBy(places: Iterable<Pick<Place, 'client'>>): (client: string) => number {
  const counts = new Map<string, number>()
  for (const { client } of places) counts.set(client, (counts.get(client) ?? 0) + 1)
  return client => counts.get(client) ?? 0
}

/**
 * Chooses the next place to start: from the client with the fewest places, then from the client served longest ago,
 * then the place that arrived first.
 * @param served a counter value for when each client last got a place; absent means never
 */
export function nextWaiting<P extends Pick<Place, 'client'>>(
  waiting: readonly P[],
  working: readonly P[],
  served: ReadonlyMap<string, number>
): P | undefined {
  const has = countBy(working)
  const lastServed = ({ client }: P) => served.get(client) ?? -1
  return waiting.toSorted((a, b) => has(a.client) - has(b.client) || lastServed(a) - lastServed(b))[0]
}

/**
 * Chooses the place to give up for a waiting one: the latest place of the client with the most, if that client has at
 * least two more. Otherwise, for a client without a place, the oldest one once its turn is over.
 * @returns the place, and the milliseconds until then
 */
export function placeToYield<P extends Pick<Place, 'client'> & { since: number }>(
  next: P,
  working: readonly P[],
  turnLength: number,
  now: number
): { place: P; in: number } | undefined {
  const oldestFirst = working.toSorted((a, b) => a.since - b.since)
  const latest = placeToDrop(oldestFirst, next.client)
  if (latest) return { place: latest, in: 0 }
  const [oldest] = oldestFirst
  if (!oldest || working.some(({ client }) => client === next.client)) return undefined
  return { place: oldest, in: Math.max(0, oldest.since + turnLength - now) }
}

/** Chooses the latest place of the client with the most, if it has at least two more. @param places oldest first */
export function placeToDrop<P extends Pick<Place, 'client'>>(places: readonly P[], client: string): P | undefined {
  const has = countBy(places)
  const [latest] = places.toReversed().sort((a, b) => has(b.client) - has(a.client))
  return latest && has(latest.client) >= has(client) + 2 ? latest : undefined
}

interface Entry extends Place {
  since: number
  begin(): void
  refuse(error: CorralError): void
  yield(): void
}

const RETRY_AFTER_S = 30

/** Shares a number of places fairly between clients, however many requests one of them makes. */
export class FairQueue {
  readonly #options: FairQueueOptions
  readonly #waiting: Entry[] = []
  readonly #working = new Set<Entry>()
  readonly #served = new Map<string, number>()
  #count = 0
  #timer: NodeJS.Timeout | undefined

  constructor(options: Partial<FairQueueOptions> = {}) {
    this.#options = { places: 0, waiting: 0, turnLength: undefined, ...options }
  }

  configure(options: Partial<FairQueueOptions>): void {
    Object.assign(this.#options, options)
    this.#settle()
  }

  /** @param isAdmitted it may wait even if the queue is full @throws CorralError `rate_limited` if too many wait */
  enter(client: string, isAdmitted = false): Place {
    let begin!: () => void
    let refuse!: (error: CorralError) => void
    const begun = new Promise<void>((resolve, reject) => {
      begin = resolve
      refuse = reject
    })
    // It may be refused before it is awaited. Prevents an unhandled rejection.
    begun.catch(() => undefined)
    const yielding = new AbortController()
    const entry: Entry = {
      client,
      begun,
      since: 0,
      get isWaiting() {
        return entry.since === 0
      },
      yielding: yielding.signal,
      begin,
      refuse,
      yield: () => yielding.abort(new Error('its turn is over')),
      leave: () => this.#leave(entry)
    }
    this.#waiting.push(entry)
    this.#settle()
    // Places that are about to be given up make room in the queue.
    const most = this.#options.waiting + [...this.#working].filter(({ yielding }) => yielding.aborted).length
    if (!isAdmitted && this.#waiting.includes(entry) && this.#waiting.length > most) {
      const dropped = placeToDrop(
        this.#waiting.filter(other => other !== entry),
        client
      )
      this.#remove(dropped ?? entry)
      if (!dropped) throw this.#tooMany('')
      dropped.refuse(this.#tooMany(' It gave its place to another client, which has fewer.'))
    }
    return entry
  }

  #tooMany(why: string): CorralError {
    const { waiting } = this.#options
    return new CorralError(
      'rate_limited',
      `${waiting} pulls are already waiting, the maximum that limits.waiting_pulls allows.${why} Pull again when some have ended ` +
        '(GET /api/pulls lists them). An admin can raise the limit in config.yaml.',
      { retryAfter: RETRY_AFTER_S, details: { limit: 'limits.waiting_pulls', allowed: waiting } }
    )
  }

  #remove(entry: Entry): void {
    const at = this.#waiting.indexOf(entry)
    if (at !== -1) this.#waiting.splice(at, 1)
    this.#working.delete(entry)
  }

  #leave(entry: Entry): void {
    this.#remove(entry)
    this.#settle()
    const { client } = entry
    const isThere = [...this.#waiting, ...this.#working].some(other => other.client === client)
    if (!isThere) this.#served.delete(client)
  }

  #settle(): void {
    clearTimeout(this.#timer)
    const { places, turnLength } = this.#options
    const next = () => nextWaiting(this.#waiting, [...this.#working], this.#served)
    for (let entry = next(); entry && this.#working.size < places; entry = next()) {
      this.#remove(entry)
      this.#working.add(entry)
      this.#served.set(entry.client, ++this.#count)
      entry.since = performance.now()
      entry.begin()
    }
    const entry = next()
    const working = [...this.#working]
    // One at a time: choose again after a place has been given up.
    if (turnLength === undefined || !entry || working.some(({ yielding }) => yielding.aborted)) return
    const found = placeToYield(entry, working, turnLength, performance.now())
    if (found?.in === 0) found.place.yield()
    else if (found) this.#timer = setTimeout(() => this.#settle(), Math.ceil(found.in)).unref()
  }
}
