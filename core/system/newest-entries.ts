/** Sets an entry of a map that keeps `most` entries, those that were set last. */
export function setNewest<Key, Value>(map: Map<Key, Value>, key: Key, value: Value, most: number): void {
  // At the end: the first key of a Map is the one that was inserted longest ago.
  map.delete(key)
  map.set(key, value)
  if (map.size > most) map.delete(map.keys().next().value!)
}
