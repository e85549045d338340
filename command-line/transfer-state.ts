/** One file, or one step of other work. */
export interface Transfer {
  name: string
  completed: number
  total: number
  /** When it made progress last (epoch milliseconds). */
  movedAt: number
}

/** How much had been moved at a moment (epoch milliseconds). */
interface Sample {
  at: number
  moved: number
}

/** The speed is an average over this time: long enough to be steady, short enough to follow a slower line (milliseconds). */
const SPEED_WINDOW = 10_000
/** A shorter observation gives no speed. */
const SHORTEST = 1000

/** The state of everything that one command moves. Times are epoch milliseconds. */
export class Transfers {
  readonly #items = new Map<string, Transfer>()
  /** The total that the server announced; files appear one by one. */
  readonly #expected: number
  #samples: Sample[] = []
  #moved = 0

  constructor(expected = 0) {
    this.#expected = expected
  }

  /** In the order they appeared. */
  get items(): Transfer[] {
    return [...this.#items.values()]
  }

  get completed(): number {
    return this.items.reduce((sum, { completed }) => sum + completed, 0)
  }

  get total(): number {
    const known = this.items.reduce((sum, { total }) => sum + total, 0)
    return Math.max(this.#expected, known)
  }

  /** @param key identifies the item; `name` is displayed, and may change */
  update(key: string, completed: number, total: number, now: number, name = key): void {
    const before = this.#items.get(key)
    // What a file has when it first appears was moved earlier, and what is fetched again was counted already.
    const gain = Math.max(0, completed - (before?.completed ?? completed))
    this.#items.set(key, { name, completed, total, movedAt: gain > 0 ? now : (before?.movedAt ?? 0) })
    this.#moved += gain
    this.#samples.push({ at: now, moved: this.#moved })
    const old = this.#samples.findLastIndex(({ at }) => at <= now - SPEED_WINDOW)
    if (old > 0) this.#samples = this.#samples.slice(old)
  }

  /** Starts over: from now on something else is counted. */
  reset(): void {
    this.#items.clear()
    this.#samples = []
    this.#moved = 0
  }

  /** Units per second; undefined after too short an observation. */
  speed(now: number): number | undefined {
    return speedOf(this.#samples, now)
  }
}

/**
 * Units per second over the last ten seconds before `now`; undefined after too short an observation.
 * @param samples in order of time; the first is where the counting began
 */
export function speedOf(samples: readonly Sample[], now: number): number | undefined {
  const begin = now - SPEED_WINDOW
  const from = samples.findLast(({ at }) => at <= begin) ?? samples[0]
  if (!from) return undefined
  const elapsed = now - Math.max(from.at, begin)
  return elapsed < SHORTEST ? undefined : ((samples.at(-1)!.moved - from.moved) / elapsed) * 1000
}

/** Text such as `8 s`, `3 min 5 s`, `2 h 10 min` or `4 days`; undefined while nothing moves. */
export function formatTimeLeft(remaining: number, speed: number | undefined): string | undefined {
  if (!speed) return undefined
  const seconds = Math.ceil(remaining / speed)
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${Math.round(seconds / 86_400)} days`
}

/** Whole percent, 100 only when nothing is missing; empty while the total is unknown. */
export function percentOf(completed: number, total: number): string {
  if (total <= 0) return completed > 0 ? '' : '100%'
  return `${Math.min(100, Math.floor((completed / total) * 100))}%`
}
