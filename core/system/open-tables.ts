/*
 * Tables of what is open: what comes and goes with each request. A Map or a Set of it would hold most of what requests
 * take for minutes. V8 moves the table of one that lives on into its old generation; when that table is full of deleted
 * entries another one takes its place, which the old one knows, with all that it still holds, until V8 collects the old
 * generation. So here a Map is left behind before it fills: one that nobody knows dies young.
 */

/** How many more entries than there are left may have been deleted from a Map before it is left behind. */
const SLACK = 8

/** A Map whose entries come and go with requests. Who goes through it while others delete may still meet what is gone. */
export class OpenMap<Key, Value> {
  #entries = new Map<Key, Value>()
  #deleted = 0

  get size(): number {
    return this.#entries.size
  }

  get(key: Key): Value | undefined {
    return this.#entries.get(key)
  }

  has(key: Key): boolean {
    return this.#entries.has(key)
  }

  set(key: Key, value: Value): void {
    this.#entries.set(key, value)
  }

  /** @returns whether it was there */
  delete(key: Key): boolean {
    if (!this.#entries.delete(key)) return false
    if (++this.#deleted > this.#entries.size + SLACK) {
      this.#entries = new Map(this.#entries)
      this.#deleted = 0
    }
    return true
  }

  clear(): void {
    this.#entries = new Map()
    this.#deleted = 0
  }

  /** In the order in which they were set. */
  keys(): IterableIterator<Key> {
    return this.#entries.keys()
  }

  values(): IterableIterator<Value> {
    return this.#entries.values()
  }

  [Symbol.iterator](): IterableIterator<[Key, Value]> {
    return this.#entries[Symbol.iterator]()
  }
}

/** A Set of the same kind. */
export class OpenSet<Thing> {
  readonly #things = new OpenMap<Thing, true>()

  get size(): number {
    return this.#things.size
  }

  has(thing: Thing): boolean {
    return this.#things.has(thing)
  }

  add(thing: Thing): void {
    this.#things.set(thing, true)
  }

  /** @returns whether it was there */
  delete(thing: Thing): boolean {
    return this.#things.delete(thing)
  }

  /** In the order in which they were added. */
  [Symbol.iterator](): IterableIterator<Thing> {
    return this.#things.keys()
  }
}
