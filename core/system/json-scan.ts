/** Maximum values of a request body: parsing more would block all other clients for seconds, and take gigabytes. */
export const MAX_JSON_VALUES = 2_000_000
/** Maximum lists, objects and keys of a request body, which cost ten times as much as other values. */
export const MAX_JSON_MEMBERS = 150_000

export type JsonExcess = 'depth' | 'values' | 'members'

const QUOTE = 34
const COMMA = 44
const COLON = 58
const BACKSLASH = 92
const OPENS = [91, 123] as const
const CLOSES = [93, 125] as const

/** Counts values, keys, lists and objects of a JSON text, outside of strings, without parsing it. */
export class JsonScan {
  readonly #text: string
  readonly #most: { depth: number; values: number; members: number }
  #at = 0
  #values = 0
  #members = 0
  #inString = false
  #depth = 0

  constructor(text: string, depth: number, values = MAX_JSON_VALUES, members = MAX_JSON_MEMBERS) {
    this.#text = text
    this.#most = { depth, values, members }
  }

  /** Number of lists, objects and keys so far. */
  get members(): number {
    return this.#members
  }

  /** Number of other values so far, by their commas. */
  get values(): number {
    return this.#values
  }

  /** Continues to this index, or to the end of a string. @returns the limit that is exceeded, if any */
  next(end: number): JsonExcess | undefined {
    const text = this.#text
    const most = this.#most
    let at = this.#at
    let depth = this.#depth
    let values = this.#values
    let members = this.#members
    for (; at < end; at++) {
      const code = text.charCodeAt(at)
      if (this.#inString || code === QUOTE) at = this.#leap(this.#inString ? at : at + 1, end)
      else if (code === COMMA) {
        if (++values > most.values) return 'values'
      } else if (code === COLON) {
        if (++members > most.members) return 'members'
      } else if (code === OPENS[0] || code === OPENS[1]) {
        if (++depth > most.depth) return 'depth'
        if (++members > most.members) return 'members'
      } else if (code === CLOSES[0] || code === CLOSES[1]) depth--
    }
    this.#at = at
    this.#depth = depth
    this.#values = values
    this.#members = members
    return undefined
  }

  /** The index of the quotation mark that ends a string, or of a quotation mark within it that is beyond `end`. */
  #leap(from: number, end: number): number {
    const text = this.#text
    for (let at = text.indexOf('"', from); at !== -1; at = text.indexOf('"', at + 1)) {
      let before = at - 1
      while (text.charCodeAt(before) === BACKSLASH) before--
      this.#inString = (at - before) % 2 === 0
      if (!this.#inString || at >= end) return at
    }
    this.#inString = false
    return text.length
  }
}
