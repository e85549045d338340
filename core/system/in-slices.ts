import { setImmediate as nextTurn } from 'node:timers/promises'

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
