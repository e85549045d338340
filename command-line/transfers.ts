import { type Sample, SPEED_WINDOW, speedOf } from './transfer-speed.ts'

/** One file, or one step of other work. */
export interface Transfer {
  name: string
  completed: number
  total: number
  /** When something of it was moved last (epoch milliseconds). */
  movedAt: number
}

/** What is known of all that is moved for one command. Times are epoch milliseconds. */
export class Transfers {
  readonly #items = new Map<string, Transfer>()
  /** What the server said all will come to; files appear one by one. */
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
    return Math.max(
      this.#expected,
      this.items.reduce((sum, { total }) => sum + total, 0)
    )
  }

  /** @param key tells items apart; `name` is what people see, and may change */
  update(key: string, completed: number, total: number, now: number, name = key): void {
    const before = this.#items.get(key)
    // What is there when a file is first heard of came earlier, and what is fetched once more was counted already.
    const gain = Math.max(0, completed - (before?.completed ?? completed))
    this.#items.set(key, { name, completed, total, movedAt: gain > 0 ? now : (before?.movedAt ?? 0) })
    this.#moved += gain
    this.#samples.push({ at: now, moved: this.#moved })
    const old = this.#samples.findLastIndex(({ at }) => at <= now - SPEED_WINDOW)
    if (old > 0) this.#samples = this.#samples.slice(old)
  }

  /** Forgets all: something else is counted from now on. */
  reset(): void {
    this.#items.clear()
    this.#samples = []
    this.#moved = 0
  }

  /** Units a second; undefined while too little was seen. */
  speed(now: number): number | undefined {
    return speedOf(this.#samples, now)
  }
}
