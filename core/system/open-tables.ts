/*
 * Tables whose entries come and go with each request. A plain Map or Set would retain most of the memory of requests
 * for minutes. V8 moves a long-lived table into its old generation. When the table is full of deleted entries, V8
 * replaces it, but the old table refers to the new one and everything in it until V8 collects the old generation. So
 * these tables replace their Map before it fills up, while nothing refers to it.
 */

/** A Map is replaced when its deleted entries outnumber the remaining ones by this many. */
const MAX_EXTRA_DELETIONS = 8

/** A Map whose entries come and go with requests. Iterating while others delete may still return deleted entries. */
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
    if (++this.#deleted > this.#entries.size + MAX_EXTRA_DELETIONS) {
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

/** Adds to the count of a key. Counts of 0 are not stored. */
export function addTo<Key>(
  counts: Pick<Map<Key, number>, 'get' | 'delete'> & { set(key: Key, count: number): unknown },
  key: Key,
  more: number
): void {
  const count = (counts.get(key) ?? 0) + more
  if (count === 0) counts.delete(key)
  else counts.set(key, count)
}
