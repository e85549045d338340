import { CorralError } from '../../../../core/errors.ts'

/** What is waited for, and how much of it there is. */
export interface TurnOptions {
  /** How many work at once. */
  places: number
  /** The most of them that one client has. */
  perClient: number
  /** How many may wait. */
  waiting: number
  /**
   * Milliseconds after which a place is given up for a client that has none; undefined where what was begun must end.
   * Places that a client has beyond its share are then given up at once.
   */
  turnLength?: number
}

/** A place that somebody has or waits for. */
export interface Place {
  /** The client that it belongs to (`Caller.turn`). */
  readonly client: string
  /** Resolves when the work may begin. @throws CorralError `rate_limited` when another client needs its place in the queue */
  readonly begun: Promise<void>
  readonly isWaiting: boolean
  /** Aborted when the work is to stop for another client's, and wait again. */
  readonly yielding: AbortSignal
  /** The work has ended, or is not wanted any more. */
  leave(): void
}

/** How many of some places each client has. */
function countBy(places: Iterable<Pick<Place, 'client'>>): (client: string) => number {
  const counts = new Map<string, number>()
  for (const { client } of places) counts.set(client, (counts.get(client) ?? 0) + 1)
  return client => counts.get(client) ?? 0
}

/**
 * Who is next: the client that has the fewest places, of those the one that was served longest ago, of its own the one
 * that came first.
 * @param served when each client last got a place, as a count; absent is never
 */
export function nextWaiting<P extends Pick<Place, 'client'>>(
  waiting: readonly P[],
  working: readonly P[],
  served: ReadonlyMap<string, number>,
  perClient: number
): P | undefined {
  const has = countBy(working)
  const lastServed = ({ client }: P) => served.get(client) ?? -1
  const able = waiting.filter(({ client }) => has(client) < perClient)
  return able.sort((a, b) => has(a.client) - has(b.client) || lastServed(a) - lastServed(b))[0]
}

/**
 * Which place is to be given up for one that waits: the latest of the client with the most, where that has at least two
 * more; else, for a client that has none, the one that was begun longest ago, once its turn is over.
 * @returns the place, and the milliseconds until then
 */
export function placeToYield<P extends Pick<Place, 'client'> & { since: number }>(
  next: P,
  working: readonly P[],
  turnLength: number,
  now: number
): { place: P; in: number } | undefined {
  const has = countBy(working)
  const latestFirst = [...working].sort((a, b) => has(b.client) - has(a.client) || b.since - a.since)
  const [most] = latestFirst
  if (most && has(most.client) >= has(next.client) + 2) return { place: most, in: 0 }
  if (has(next.client) > 0) return undefined
  const oldest = [...working].sort((a, b) => a.since - b.since)[0]
  return oldest && { place: oldest, in: Math.max(0, oldest.since + turnLength - now) }
}

/** Whose place in a full queue goes to another client: the latest of the one with the most, if that has two more. */
export function placeToDrop<P extends Pick<Place, 'client'>>(waiting: readonly P[], client: string): P | undefined {
  const has = countBy(waiting)
  const [latest] = waiting.toReversed().sort((a, b) => has(b.client) - has(a.client))
  return latest && has(latest.client) >= has(client) + 2 ? latest : undefined
}

interface Entry extends Place {
  since: number
  begin(): void
  refuse(error: CorralError): void
  yield(): void
}

/** Seconds after which a refused client may try again. */
const RETRY_AFTER = 30

/** Shares a number of places between clients: each has its turn, however much the others want. */
export class Turns {
  readonly #options: TurnOptions
  readonly #waiting: Entry[] = []
  readonly #working = new Set<Entry>()
  readonly #served = new Map<string, number>()
  #count = 0
  #timer: NodeJS.Timeout | undefined

  constructor(options: TurnOptions) {
    this.#options = { ...options }
  }

  /** Takes other numbers; who works goes on. */
  configure(options: Partial<TurnOptions>): void {
    Object.assign(this.#options, options)
    this.#settle()
  }

  /**
   * Joins the queue.
   * @param isAdmitted it waits whatever the bound, since it was let in before
   * @throws CorralError `rate_limited` when too many wait
   */
  enter(client: string, isAdmitted = false): Place {
    const { promise: begun, resolve, reject } = deferred()
    // Whoever waits gets it; it may be refused before anybody does.
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
      begin: resolve,
      refuse: reject,
      yield: () => yielding.abort(new Error('its turn is over')),
      leave: () => this.#leave(entry)
    }
    this.#waiting.push(entry)
    this.#settle()
    // For places that are being given up nobody has to leave the queue.
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
      `${waiting} pulls wait already, as many as limits.waiting_pulls allows.${why} Pull again when some have ended ` +
        '(GET /api/pulls lists them); an admin may raise the bound in config.yaml.',
      { retryAfter: RETRY_AFTER, details: { limit: 'limits.waiting_pulls', allowed: waiting } }
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
    const { places, perClient, turnLength } = this.#options
    const next = () => nextWaiting(this.#waiting, [...this.#working], this.#served, perClient)
    for (let entry = next(); entry && this.#working.size < places; entry = next()) {
      this.#remove(entry)
      this.#working.add(entry)
      this.#served.set(entry.client, ++this.#count)
      entry.since = performance.now()
      entry.begin()
    }
    const entry = next()
    const working = [...this.#working]
    // One after another: who is next is decided anew when a place has been given up.
    if (turnLength === undefined || !entry || working.some(({ yielding }) => yielding.aborted)) return
    const found = placeToYield(entry, working, turnLength, performance.now())
    if (found?.in === 0) found.place.yield()
    else if (found) this.#timer = setTimeout(() => this.#settle(), Math.ceil(found.in)).unref()
  }
}

function deferred() {
  let resolve!: () => void
  let reject!: (error: Error) => void
  const promise = new Promise<void>((onDone, onFailure) => {
    resolve = onDone
    reject = onFailure
  })
  return { promise, resolve, reject }
}
