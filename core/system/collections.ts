import { setImmediate as nextTurn } from 'node:timers/promises'

/** Adds to a list. @returns removes it again */
export function addTo<Entry>(list: Entry[], entry: Entry): () => void {
  list.push(entry)
  return () => {
    const at = list.indexOf(entry)
    if (at !== -1) list.splice(at, 1)
  }
}

/** The length of the common beginning of two texts or lists. */
export function commonStart(one: ArrayLike<unknown>, other: ArrayLike<unknown>): number {
  let count = 0
  while (count < one.length && count < other.length && one[count] === other[count]) count++
  return count
}

/** Returns the value of a key. A missing value is made and added first. */
export function getOrAdd<Key, Value>(
  map: { get(key: Key): Value | undefined; set(key: Key, value: Value): unknown },
  key: Key,
  make: () => Value
): Value {
  const found = map.get(key)
  if (found !== undefined) return found
  const made = make()
  map.set(key, made)
  return made
}

/** Sets an entry of a map that keeps only the `most` entries that were set last. */
export function setNewest<Key, Value>(map: Map<Key, Value>, key: Key, value: Value, most: number): void {
  // Moves it to the end: a Map's first key is the oldest.
  map.delete(key)
  map.set(key, value)
  if (map.size > most) map.delete(map.keys().next().value!)
}

/**
 * A new object with the properties of both; the second's win. Use it for objects of every request: if an object literal
 * begins with a spread and continues, V8 creates hidden classes for each object, which keep much of the request in
 * memory until the next full garbage collection.
 */
export function merged<First extends object, Second extends object>(first: First, second: Second): First & Second {
  return Object.assign({}, first, second)
}

/** Items mapped before other requests get their turn. */
const SLICE = 500

/** Maps a list that may be very long, in slices between which other requests are answered. Leaves out undefined. */
export async function mapInSlices<Item, Result>(
  items: readonly Item[],
  map: (item: Item) => Result | undefined
): Promise<Result[]> {
  const results: Result[] = []
  for (const [index, item] of items.entries()) {
    if (index % SLICE === SLICE - 1) await nextTurn()
    const result = map(item)
    if (result !== undefined) results.push(result)
  }
  return results
}
