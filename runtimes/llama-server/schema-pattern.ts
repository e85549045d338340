import { parseQuantifier } from './grammar-text.ts'

/** Pairs of first and last code points, sorted and disjoint. */
type Ranges = readonly (readonly [number, number])[]

/** A part of a regular expression, with the minimum and maximum characters that it matches. */
type Part = { min: number; max: number } & (
  | { kind: 'set'; ranges: Ranges }
  | { kind: 'sequence' | 'choice'; parts: readonly Part[] }
  | { kind: 'repeat'; part: Part; least: number; most: number }
  | { kind: 'anchor'; sign: '^' | '$' }
)

/** A valid regular expression that a grammar cannot enforce. */
class Unsupported extends Error {
  override readonly name = 'Unsupported'
}

/** llama.cpp refuses more repetitions, and treats larger upper limits as unlimited. */
export const MAX_REPETITIONS = 2000
/** llama.cpp accepts any text if groups are nested more deeply than 100. */
const MAX_DEPTH = 90
/** Characters of a group that may contain more than 2000 other groups. */
const LONG_GROUP = 2000
const MAX_CODE_POINT = 0x10_ff_ff
/** Only sets up to this size admit control characters without a short escape in JSON. */
const SMALL_SET = 64

const DIGIT: Ranges = [[48, 57]]
const WORD = union([...DIGIT, [65, 90], [95, 95], [97, 122]])
const SPACE = fromText(
  '\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff'
)
const LINE_ENDS = fromText('\n\r\u2028\u2029')
const EVERYTHING: Ranges = [[0, MAX_CODE_POINT]]
const CLASSES: Record<string, Ranges> = { d: DIGIT, w: WORD, s: SPACE }
for (const [name, ranges] of Object.entries(CLASSES)) CLASSES[name.toUpperCase()] = complement(ranges)

const CONTROLS: Record<string, number> = { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 }
/** JSON's short escapes: the letter after the backslash. */
const SHORT_ESCAPES = new Map([
  [8, 'b'],
  [9, 't'],
  [10, 'n'],
  [12, 'f'],
  [13, 'r'],
  [34, '"'],
  [92, '\\\\']
] as const)
/** Characters that need no escape in a JSON string, without surrogates. */
const PLAIN = union([
  [32, 33],
  [35, 91],
  [93, 126],
  [128, 0xd7_ff],
  [0xe0_00, MAX_CODE_POINT]
])

/** Any text, around an expression that is not anchored. */
const ANYTHING = repeat(makeSet(EVERYTHING), 0, Number.POSITIVE_INFINITY)

/**
 * Rewrites a regular expression (ECMA-262) in the form that llama.cpp enforces without breaking the surrounding JSON.
 * @param length limits of the text's length, enforced if the expression is one repeated set of characters
 * @returns undefined if no grammar can enforce any part of it @throws SyntaxError
 */
export function compilePattern(
  source: string,
  length: { min: number; max: number } = { min: 0, max: Number.POSITIVE_INFINITY }
) {
  requireSyntax(source)
  return unlessUnsupported(() => {
    const reader = new PatternReader(source)
    let whole = withoutAnchors(reader.read())
    const only = whole.kind === 'sequence' && whole.parts.length === 1 ? whole.parts[0]! : whole
    if (only.kind === 'repeat' && only.part.kind === 'set' && only.min <= length.max && only.max >= length.min) {
      whole = repeat(only.part, Math.max(only.least, length.min), Math.min(only.most, length.max))
    }
    const writer = new PatternWriter()
    const pattern = writer.whole(whole)
    const loose = reader.loose || writer.loose
    const matches = matcher(whole)
    return {
      /** In llama.cpp's subset of regular expressions: the text between the quotation marks of a JSON string. */
      pattern,
      /** Whether it admits more than the given expression. It may then match texts that the given one does not. */
      loose,
      /** Characters of a matching text. */
      min: whole.min,
      max: whole.max,
      /** Whether a text matches. Undefined if that is unknown, or takes too long to find out. */
      matches: (text: string) => matches(text) && (loose ? undefined : true)
    }
  })
}

function unlessUnsupported<Result>(make: () => Result): Result | undefined {
  try {
    return make()
  } catch (error) {
    if (error instanceof Unsupported) return undefined
    throw error
  }
}

/**
 * Merges short texts into one expression that writes common prefixes once, so that few alternatives are open.
 * @returns undefined if a text is long, or cannot be represented in JSON
 */
export function textsPattern(texts: readonly string[]): string | undefined {
  if (texts.some(({ length }) => length > MAX_DEPTH)) return undefined
  const part = (rest: readonly string[]): Part => {
    const byFirst = new Map<number, string[]>()
    let ends = false
    for (const text of rest) {
      const first = text.codePointAt(0)
      if (first === undefined) ends = true
      else {
        const rests = byFirst.get(first) ?? []
        rests.push(text.slice(first > 0xffff ? 2 : 1))
        byFirst.set(first, rests)
      }
    }
    const parts = [...byFirst].map(([first, rests]) => sequence([character(first), part(rests)]))
    const made = choice(parts)
    if (parts.length === 0) return sequence([])
    return ends ? choice([made, sequence([])]) : made
  }
  return unlessUnsupported(() => new PatternWriter().whole(part(texts)))
}

/** Older expressions are valid only without the flag `u`. @throws SyntaxError */
function requireSyntax(source: string): void {
  try {
    new RegExp(source, 'u')
  } catch {
    new RegExp(source)
  }
}

// ---- sets ----------------------------------------------------------------------------------------------------------

function union(ranges: Ranges): Ranges {
  const made: [number, number][] = []
  for (const [low, high] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const last = made.at(-1)
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high)
    else made.push([low, high])
  }
  return made
}

function fromText(characters: string): Ranges {
  return union([...characters].map(each => [each.codePointAt(0)!, each.codePointAt(0)!]))
}

function complement(ranges: Ranges): Ranges {
  const made: [number, number][] = []
  let next = 0
  for (const [low, high] of ranges) {
    if (low > next) made.push([next, low - 1])
    next = high + 1
  }
  if (next <= MAX_CODE_POINT) made.push([next, MAX_CODE_POINT])
  return made
}

const intersection = (a: Ranges, b: Ranges) => complement(union([...complement(a), ...complement(b)]))
const has = (ranges: Ranges, code: number) => ranges.some(([low, high]) => code >= low && code <= high)
const getSize = (ranges: Ranges) => ranges.reduce((sum, [low, high]) => sum + high - low + 1, 0)

// ---- parts ---------------------------------------------------------------------------------------------------------

function makeSet(ranges: Ranges): Part {
  return { kind: 'set', ranges, min: 1, max: 1 }
}
function character(code: number): Part {
  return makeSet([[code, code]])
}
function sequence(parts: readonly Part[]): Part {
  const sum = (of: 'min' | 'max') => parts.reduce((total, part) => total + part[of], 0)
  return { kind: 'sequence', parts, min: sum('min'), max: sum('max') }
}
function choice(parts: readonly Part[]): Part {
  if (parts.length === 1) return parts[0]!
  const [min, max] = [Math.min(...parts.map(each => each.min)), Math.max(...parts.map(each => each.max))]
  return { kind: 'choice', parts, min, max }
}
function repeat(part: Part, least: number, most: number): Part {
  return { kind: 'repeat', part, least, most, min: part.min * least, max: most === 0 ? 0 : part.max * most || 0 }
}

/** Returns an expression for the whole text. Each alternative may be anchored at its ends. @throws Unsupported */
function withoutAnchors(part: Part): Part {
  if (part.kind === 'choice') return choice(part.parts.map(withoutAnchors))
  let parts = part.kind === 'sequence' ? part.parts : [part]
  if (parts.length === 1 && parts[0]!.kind === 'choice') return withoutAnchors(parts[0]!)
  const isAnchor = (each: Part | undefined, sign: string) => each?.kind === 'anchor' && each.sign === sign
  const begins = isAnchor(parts[0], '^')
  while (isAnchor(parts[0], '^')) parts = parts.slice(1)
  const ends = isAnchor(parts.at(-1), '$')
  while (isAnchor(parts.at(-1), '$')) parts = parts.slice(0, -1)
  return sequence([...(begins ? [] : [ANYTHING]), ...parts, ...(ends ? [] : [ANYTHING])])
}

/** Maximum steps for all matches of one expression, because untrusted input must not block the thread. */
const MAX_STEPS = 200_000

function matcher(whole: Part) {
  let steps = 0
  let codes: number[] = []
  /** Returns the positions in the text after the part. @param from positions at which the part may begin */
  const ends = (part: Part, from: ReadonlySet<number>): ReadonlySet<number> => {
    steps += 1 + from.size
    if (steps > MAX_STEPS) return new Set()
    switch (part.kind) {
      case 'anchor':
        return from
      case 'set':
        return new Set([...from].filter(at => at < codes.length && has(part.ranges, codes[at]!)).map(at => at + 1))
      case 'sequence':
        return part.parts.reduce((reached, each) => ends(each, reached), from)
      case 'choice':
        return new Set(part.parts.flatMap(each => [...ends(each, from)]))
      case 'repeat': {
        const found = new Set(part.least === 0 ? from : [])
        let reached = from
        for (let count = 1; count <= part.most && reached.size > 0 && steps <= MAX_STEPS; count++) {
          reached = ends(part.part, reached)
          if (count < part.least) continue
          const before = found.size
          for (const at of reached) found.add(at)
          if (found.size === before) break
        }
        return found
      }
    }
  }
  return (text: string) => {
    if (steps > MAX_STEPS) return undefined
    codes = [...text].map(each => each.codePointAt(0)!)
    const found = ends(whole, new Set([0])).has(codes.length)
    return steps > MAX_STEPS ? undefined : found
  }
}

class PatternReader {
  /** Whether the result admits more than the source, because assertions are ignored. */
  loose = false
  readonly #source: string
  #at = 0

  constructor(source: string) {
    this.#source = source
  }

  read(): Part {
    const part = this.#alternatives(0)
    if (this.#at < this.#source.length) throw new Unsupported()
    return part
  }

  #take(expression: RegExp): string | undefined {
    expression.lastIndex = this.#at
    const found = expression.exec(this.#source)?.[0]
    this.#at += found?.length ?? 0
    return found
  }

  #alternatives(depth: number): Part {
    if (depth > MAX_DEPTH) throw new Unsupported()
    const parts = [this.#sequence(depth)]
    while (this.#take(/\|/y)) parts.push(this.#sequence(depth))
    return choice(parts)
  }

  #sequence(depth: number): Part {
    const parts: Part[] = []
    for (;;) {
      const part = this.#atom(depth)
      if (!part) return parts.length === 1 ? parts[0]! : sequence(parts)
      const quantifier = this.#take(/[*+?]|\{\d+(?:,\d*)?\}/y)
      if (quantifier === undefined) parts.push(part)
      else {
        this.#take(/\?/y)
        parts.push(repeat(part, ...parseQuantifier(quantifier)))
      }
    }
  }

  #atom(depth: number): Part | undefined {
    if (this.#at >= this.#source.length || /[|)]/.test(this.#source[this.#at]!)) return undefined
    const group = this.#take(/\((?:\?(?:<?[=!]|:|<[^>]*>))?/y)
    if (group) {
      if (this.#source[this.#at] === '?') throw new Unsupported()
      const part = this.#alternatives(depth + 1)
      if (!this.#take(/\)/y)) throw new Unsupported()
      return /[=!]$/.test(group) ? this.#loosely(sequence([])) : part
    }
    if (this.#take(/\\[bB]/y)) return this.#loosely(sequence([]))
    if (this.#take(/\\(?:[1-9]\d*|k<[^>]*>)/y)) return this.#loosely(ANYTHING)
    const anchor = this.#take(/[$^]/y) as '^' | '$' | undefined
    if (anchor) return { kind: 'anchor', sign: anchor, min: 0, max: 0 }
    if (this.#take(/\./y)) return makeSet(complement(LINE_ENDS))
    if (this.#take(/\[/y)) return makeSet(this.#class())
    return makeSet(this.#member())
  }

  #loosely<Read>(read: Read): Read {
    this.loose = true
    return read
  }

  #class(): Ranges {
    const negated = this.#take(/\^/y) !== undefined
    const ranges: (readonly [number, number])[] = []
    while (!this.#take(/\]/y)) {
      const low = this.#member(true)
      const isRange = getSize(low) === 1 && this.#source[this.#at] === '-' && this.#source[this.#at + 1] !== ']'
      if (!isRange) ranges.push(...low)
      else {
        this.#at++
        const high = this.#member(true)
        // A class at the end of a range, as in `[a-\d]`, makes three members.
        if (getSize(high) === 1) ranges.push([low[0]![0], high[0]![0]])
        else ranges.push(...low, [45, 45], ...high)
      }
    }
    return negated ? complement(union(ranges)) : union(ranges)
  }

  /** Parses one character or escape. */
  #member(inClass = false): Ranges {
    if (this.#take(/\\[pP]\{[^}]*\}/y)) return this.#loosely(EVERYTHING)
    const written = this.#take(
      /\\(?:x[0-9a-fA-F]{2}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|c[a-zA-Z]|.)/suy
    )
    if (written === undefined) {
      const code = this.#source.codePointAt(this.#at)
      if (code === undefined) throw new Unsupported()
      this.#at += code > 0xffff ? 2 : 1
      return [[code, code]]
    }
    const code = parseEscape(written, inClass)
    if (code !== undefined) return [[code, code]]
    const known = CLASSES[written[1]!]
    if (!known) throw new Unsupported()
    return known
  }
}

/** Returns the character of an escape. Undefined for classes such as `\d` and `\b`. */
function parseEscape(written: string, inClass: boolean): number | undefined {
  const [, sign = ''] = written
  if (written.length > 8) {
    const [high, low] = [written.slice(2, 6), written.slice(8, 12)].map(digits => Number.parseInt(digits, 16))
    if (written[2] !== '{') return String.fromCharCode(high!, low!).codePointAt(0)
  }
  if (written.length > 2) {
    if (sign === 'c') return written.charCodeAt(2) % 32
    return Number.parseInt(written.replace(/[^0-9a-fA-F]|^\\x/g, ''), 16)
  }
  if (Object.hasOwn(CONTROLS, sign)) return CONTROLS[sign]
  if (sign === 'b' && inClass) return 8
  return /[0-9a-zA-Z]/.test(sign) ? undefined : sign.codePointAt(0)
}

// ---- writing -------------------------------------------------------------------------------------------------------

class PatternWriter {
  loose = false
  #depth = 0

  whole(part: Part): string {
    return `^${this.write(part)}$`
  }

  write(part: Part): string {
    switch (part.kind) {
      case 'anchor':
        this.loose = true
        return ''
      case 'set':
        return this.#set(part.ranges, false)
      case 'sequence':
        return part.parts.map(each => (each.kind === 'choice' ? this.#group(each) : this.write(each))).join('')
      case 'choice':
        return part.parts.map(each => this.write(each)).join('|')
      case 'repeat':
        return this.#repeat(part)
    }
  }

  #group(part: Part): string {
    if (++this.#depth > MAX_DEPTH) throw new Unsupported()
    const text = `(${this.write(part)})`
    this.#depth--
    return text
  }

  #repeat({ part, least, most }: Extract<Part, { kind: 'repeat' }>): string {
    if (most === 0 || part.max === 0) return ''
    if (least > MAX_REPETITIONS) throw new Unsupported()
    if (least === 1 && most === 1) return part.kind === 'choice' ? this.#group(part) : this.write(part)
    if (most !== Number.POSITIVE_INFINITY && most > MAX_REPETITIONS) this.loose = true
    const bound = most > MAX_REPETITIONS ? '' : `${most}`
    const text = part.kind === 'set' ? this.#set(part.ranges, true) : this.#group(part)
    const bounds = `${least},${bound}`
    const signs: Record<string, string> = { '0,': '*', '1,': '+', '0,1': '?' }
    // llama.cpp multiplies repetitions by everything inside, unless their limits are written out.
    const sign = text.includes('{') || text.length > LONG_GROUP ? undefined : signs[bounds]
    return `${text}${sign ?? (least === most ? `{${least}}` : `{${bounds}}`)}`
  }

  /** Writes one character of a JSON string from a set. Characters with a meaning in JSON are escaped. */
  #set(ranges: Ranges, isRepeated: boolean): string {
    const plain = intersection(ranges, PLAIN)
    const letters: string[] = []
    for (const [code, letter] of SHORT_ESCAPES) if (has(ranges, code)) letters.push(letter)
    const others: string[] = []
    if (getSize(ranges) <= SMALL_SET) {
      for (let code = 0; code < 32; code++) {
        const isOther = has(ranges, code) && !SHORT_ESCAPES.has(code as never)
        if (isOther) others.push(`\\\\u00${code.toString(16).padStart(2, '0')}`)
      }
    }
    const alternatives: string[] = []
    if (plain.length === 1 && getSize(plain) === 1 && !isRepeated) alternatives.push(literal(plain[0]![0]))
    else if (plain.length > 0) alternatives.push(`[${plain.map(rangeText).join('')}]`)
    if (letters.length > 0) alternatives.push(`\\\\[${letters.join('')}]`)
    alternatives.push(...others)
    if (alternatives.length === 0) throw new Unsupported()
    if (alternatives.length === 1 && !(isRepeated && plain.length === 0)) return alternatives[0]!
    return `(${alternatives.join('|')})`
  }
}

function literal(code: number): string {
  const text = String.fromCodePoint(code)
  return /[$()*+.?[\]^{|}]/.test(text) ? `\\${text}` : visible(code)
}

function rangeText([low, high]: readonly [number, number]): string {
  const member = (code: number) => {
    const text = String.fromCodePoint(code)
    return text === '^' ? '\\x5E' : /[[\]-]/.test(text) ? `\\${text}` : visible(code)
  }
  if (low === high) return member(low)
  return high === low + 1 ? member(low) + member(high) : `${member(low)}-${member(high)}`
}

/** Writes letters, digits, signs and spaces literally, others by number. */
function visible(code: number): string {
  const text = String.fromCodePoint(code)
  if (/^[\x20-\x7e\p{L}\p{N}]$/u.test(text)) return text
  return code > 0xffff ? `\\U${hex(code, 8)}` : `\\u${hex(code, 4)}`
}

const hex = (code: number, digits: number) => code.toString(16).toUpperCase().padStart(digits, '0')
