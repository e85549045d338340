/** Sets an entry of a map that keeps only the `most` entries that were set last. */
export function setNewest<Key, Value>(map: Map<Key, Value>, key: Key, value: Value, most: number): void {
  // Moves it to the end: a Map's first key is the oldest.
  map.delete(key)
  map.set(key, value)
  if (map.size > most) map.delete(map.keys().next().value!)
}
