import { setImmediate as nextTurn } from 'node:timers/promises'
import { errorMessage } from '../errors.ts'
import type { ParsedJson } from './json-file.ts'
import { JsonScan } from './json-scan.ts'
import { printable } from './printable.ts'

/** Why a text is not parsed: a clause about "it". */
class Fault extends Error {}

/** Files that describe models need about ten. */
const MAX_DEPTH = 64
const MAX_VALUES = 4_000_000
/** A listing of 100,000 files has 900,000 of them. They take about 100 MB of memory. */
const MAX_MEMBERS = 1_000_000
/** Maximum characters of a string, which cannot be parsed in slices. */
const MAX_STRING_LENGTH = 4 * 2 ** 20
/** Characters that are parsed before other work gets its turn: about a millisecond. */
const SLICE_LENGTH = 128 * 1024

const EXCESS = {
  depth: `it nests lists and objects more than ${MAX_DEPTH} levels deep`,
  values: `it has more than ${MAX_VALUES.toLocaleString('en')} values`,
  members: `it has more than ${MAX_MEMBERS.toLocaleString('en')} lists, objects and keys`
}

/**
 * Parses untrusted JSON of limited depth and size, in slices between which other requests are answered. Objects that
 * are longer than a slice lose the key `__proto__`.
 * @param options.python accepts `NaN` (as null), `Infinity` and `-Infinity`, which Python writes
 * @returns the value, or a clause about "it" that says why there is none, such as "it is not JSON (…)"
 */
export async function parseUntrustedJson(text: string, { python = false } = {}): Promise<ParsedJson<unknown>> {
  try {
    return { value: await parse(text, python) }
  } catch (error) {
    if (error instanceof Fault) return { fault: error.message }
    throw error
  }
}

async function parse(text: string, python: boolean): Promise<unknown> {
  const scan = new JsonScan(text, MAX_DEPTH, MAX_VALUES, MAX_MEMBERS)
  const parser = new SlicedParser(text, scan, python)
  while (scan.at < text.length) {
    const excess = scan.next(Math.min(scan.at + SLICE_LENGTH, text.length))
    if (excess) throw new Fault(EXCESS[excess])
    if (scan.at < text.length || parser.isOpen) {
      parser.advance()
      await nextTurn()
    }
  }
  return parser.finish()
}

/** A list or object that is longer than a slice. Its items are parsed in groups. */
interface Frame {
  value: unknown[] | Record<string, unknown>
  /** Its key in the object around it. */
  key?: string
  /**
   * Start of its unparsed text: after its opening bracket, at a comma, or after a list or object that had its own
   * frame.
   */
  rest: number
  isEmpty: boolean
}

class SlicedParser {
  readonly #text: string
  readonly #scan: JsonScan
  readonly #python: boolean
  readonly #frames: Frame[] = []
  /** Number of replaced constants. */
  #constants = 0
  #root: unknown
  /** End of the root, if it was a frame. */
  #end: number | undefined

  constructor(text: string, scan: JsonScan, python: boolean) {
    this.#text = text
    this.#scan = scan
    this.#python = python
  }

  get isOpen(): boolean {
    return this.#frames.length > 0
  }

  /** Parses the complete part of the scanned text. */
  advance(): void {
    const { at, depth, opens, commas } = this.#scan
    if (depth < 0) throw this.#invalid()
    // The scan stopped after the bracket that closes the innermost frame.
    if (depth < this.#frames.length) {
      this.#close(at - 1)
      return
    }
    for (let level = 0; level < depth; level++) {
      if (level === this.#frames.length) this.#open(opens[level]!)
      const frame = this.#frames[level]!
      const comma = commas[level] ?? -1
      if (comma > frame.rest) this.#take(frame, comma)
    }
    // All other text has been parsed or has a frame.
    if (at - (this.#frames.at(-1)?.rest ?? 0) > SLICE_LENGTH + MAX_STRING_LENGTH) {
      throw new Fault(`it has a string of more than ${MAX_STRING_LENGTH / 2 ** 20} MiB`)
    }
    this.#scan.stopLevel = this.#frames.length
  }

  /** The whole value. */
  finish(): unknown {
    if (this.isOpen) throw this.#invalid()
    if (this.#end === undefined) return this.#parse(0, this.#text.length)
    if (this.#text.slice(this.#end).trim() !== '') throw this.#invalid()
    return this.#root
  }

  #open(at: number): void {
    const parent = this.#frames.at(-1)
    if (this.#end !== undefined) throw this.#invalid()
    const before = this.#text.slice(parent ? this.#start(parent) : 0, at)
    const frame: Frame = { value: this.#text[at] === '[' ? [] : {}, rest: at + 1, isEmpty: true }
    if (parent && !Array.isArray(parent.value)) frame.key = Object.keys(this.#json(`{${before}null}`) as object)[0]!
    else if (before.trim() !== '') throw this.#invalid()
    if (parent) parent.isEmpty = false
    this.#frames.push(frame)
  }

  #close(at: number): void {
    const frame = this.#frames.pop()!
    const { value, key } = frame
    if (this.#text[at] !== (Array.isArray(value) ? ']' : '}')) throw this.#invalid()
    if (this.#text.slice(frame.rest, at).trim() !== '') this.#take(frame, at)
    const parent = this.#frames.at(-1)
    this.#scan.stopLevel = parent ? this.#frames.length : Number.NEGATIVE_INFINITY
    if (parent) {
      add(parent, Array.isArray(parent.value) ? [value] : { [key!]: value })
      parent.rest = at + 1
    } else {
      this.#root = value
      this.#end = at + 1
    }
  }

  /** Start of the next item of a frame: after the comma that must precede it. */
  #start({ rest, isEmpty }: Frame): number {
    if (isEmpty) return rest
    const at = rest + this.#text.slice(rest).search(/\S/)
    if (this.#text[at] !== ',') throw this.#invalid()
    return at + 1
  }

  /** Parses the items up to a comma or to the closing bracket. */
  #take(frame: Frame, end: number): void {
    // Only whitespace follows a list or object that was a frame.
    if (!frame.isEmpty && this.#text.slice(frame.rest, end).trim() === '') {
      frame.rest = end
      return
    }
    const start = this.#start(frame)
    if (this.#text.slice(start, end).trim() === '') throw this.#invalid()
    add(frame, this.#parse(start, end, Array.isArray(frame.value) ? '[]' : '{}') as object)
    frame.rest = end
    frame.isEmpty = false
  }

  /** Parses a part of the text, with Python's constants replaced by numbers that JSON has: 1e999 is Infinity. */
  #parse(from: number, to: number, [open = '', close = ''] = ''): unknown {
    const { constants } = this.#scan
    let json = open
    let at = from
    for (; this.#python && constants[this.#constants]! < to; this.#constants++) {
      const start = constants[this.#constants]!
      const sign = this.#text[start - 1] === '-' ? '-' : ''
      const name = ['NaN', 'Infinity'].find(constant => this.#text.startsWith(constant, start))
      // The second capital letter of NaN, which is already converted.
      if (start < at) continue
      if (!name || (sign && name === 'NaN')) throw this.#invalid()
      json += `${this.#text.slice(at, start - sign.length)} ${name === 'NaN' ? 'null' : `${sign}1e999`} `
      at = start + name.length
    }
    return this.#json(json + this.#text.slice(at, to) + close)
  }

  #json(text: string): unknown {
    try {
      return JSON.parse(text)
    } catch (error) {
      throw this.#text.length <= SLICE_LENGTH
        ? new Fault(`it is not JSON (${printable(errorMessage(error), 200)})`)
        : this.#invalid()
    }
  }

  #invalid(): Fault {
    return new Fault('it is not JSON')
  }
}

/** Appends the items of a list to a list, or those of an object to an object. */
function add({ value }: Frame, items: object): void {
  if (Array.isArray(value)) for (const item of items as unknown[]) value.push(item)
  // An assignment to `__proto__` would change the object's prototype.
  else for (const [key, item] of Object.entries(items)) if (key !== '__proto__') value[key] = item
}
