/** The place of one thing in an `OpenList`; `OpenList.remove` empties it. */
export interface OpenPlace<Thing> {
  thing: Thing | undefined
  at: number
}

/**
 * What comes and goes with each request, in no order. A Set would do, but makes a new table every few requests, and V8
 * keeps whatever was in the table before until it collects its old generation: most of what requests take would live on
 * for minutes.
 */
export class OpenList<Thing extends object> {
  readonly #places: OpenPlace<Thing>[] = []

  get size(): number {
    return this.#places.length
  }

  /** @returns the place, to take it away again */
  add(thing: Thing): OpenPlace<Thing> {
    const place = { thing, at: this.#places.length }
    this.#places.push(place)
    return place
  }

  /** @returns whether it was there */
  remove(place: OpenPlace<Thing>): boolean {
    if (place.thing === undefined) return false
    const last = this.#places.pop()!
    if (last !== place) {
      this.#places[place.at] = last
      last.at = place.at
    }
    place.thing = undefined
    return true
  }

  /** All that are there now, in a list of their own: what is done with one may take others away. */
  all(): Thing[] {
    return this.#places.map(({ thing }) => thing!)
  }
}
