import { type AST, RegExpParser } from '@eslint-community/regexpp'
import { getOrAdd } from '../../core/system/collections.ts'

/** Pairs of first and last code points, sorted and disjoint. */
type Ranges = readonly (readonly [number, number])[]

/** A part of an expression in llama.cpp's form, with the minimum and maximum characters that it matches. */
interface Written {
  text: string
  min: number
  max: number
  /** Nested parentheses. */
  depth: number
  /** Whether it is a list of alternatives. */
  isChoice?: boolean
  /** The characters of a part that is one character, or one repeated character. */
  set?: Ranges
  times?: readonly [least: number, most: number]
}

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

const EVERYTHING: Ranges = [[0, MAX_CODE_POINT]]
const CLASSES = {
  any: complement(fromText('\n\r\u2028\u2029')),
  digit: fromText('0123456789'),
  space: fromText(
    '\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff'
  ),
  word: union([
    [48, 57],
    [65, 90],
    [95, 95],
    [97, 122]
  ])
}
/** JSON's short escapes: the letter after the backslash. */
const SHORT_ESCAPES = new Map([
  [8, 'b'],
  [9, 't'],
  [10, 'n'],
  [12, 'f'],
  [13, 'r'],
  [34, '"'],
  [92, '\\\\']
])
/** Characters that a JSON string must escape, and surrogates. */
const ESCAPED = union([...fromText('"\\\x7f'), [0, 31], [0xd8_00, 0xdf_ff]])

const parser = new RegExpParser()

const NOTHING: Written = { text: '', min: 0, max: 0, depth: 0 }
/** Any text, around an expression that is not anchored. */
const ANYTHING = repeat(makeSet(EVERYTHING), 0, Number.POSITIVE_INFINITY)

/**
 * Rewrites a regular expression (ECMA-262) in the form that llama.cpp enforces without breaking the surrounding JSON.
 * @param length limits of the text's length, enforced if the expression is one repeated set of characters
 * @returns undefined if no grammar can enforce any part of it @throws SyntaxError
 */
export function compilePattern(source: string, length = { min: 0, max: Number.POSITIVE_INFINITY }) {
  const { unicode } = toRegExp(source)
  return unlessUnsupported(() => {
    const writer = new PatternWriter()
    const { alternatives } = parser.parsePattern(source, 0, source.length, { unicode })
    let whole = writer.choice(alternatives, true)
    const { set, times } = whole
    if (set && times && whole.min <= length.max && whole.max >= length.min) {
      whole = repeat(makeSet(set), Math.max(times[0], length.min), Math.min(times[1], length.max))
    }
    return {
      /** In llama.cpp's subset of regular expressions: the text between the quotation marks of a JSON string. */
      pattern: `^${whole.text}$`,
      /** Whether it admits more than the given expression. */
      loose: writer.loose,
      /** Characters of a matching text. */
      min: whole.min,
      max: whole.max
    }
  })
}

/** Older expressions are valid only without the flag `u`. @throws SyntaxError */
function toRegExp(source: string): RegExp {
  try {
    return new RegExp(source, 'u')
  } catch {
    return new RegExp(source)
  }
}

/** @throws SyntaxError */
function unlessUnsupported<Result>(make: () => Result): Result | undefined {
  try {
    return make()
  } catch (error) {
    // The parser's call stack is not unlimited.
    if (error instanceof Unsupported || error instanceof RangeError) return undefined
    throw error
  }
}

/**
 * Merges short texts into one expression that writes common prefixes once, so that few alternatives are open.
 * @returns undefined if a text is long, or cannot be represented in JSON
 */
export function textsPattern(texts: readonly string[]): string | undefined {
  if (texts.some(({ length }) => length > MAX_DEPTH)) return undefined
  const part = (rest: readonly string[]): Written => {
    const byFirst = new Map<number, string[]>()
    let ends = false
    for (const text of rest) {
      const first = text.codePointAt(0)
      if (first === undefined) ends = true
      else getOrAdd(byFirst, first, () => []).push(text.slice(first > 0xffff ? 2 : 1))
    }
    if (byFirst.size === 0) return NOTHING
    const parts = [...byFirst].map(([first, rests]) => sequence([makeSet([[first, first]]), part(rests)]))
    return choice(ends ? [choice(parts), NOTHING] : parts)
  }
  return unlessUnsupported(() => `^${part(texts).text}$`)
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

function without(ranges: Ranges, others: Ranges): Ranges {
  return complement(union([...complement(ranges), ...others]))
}

function has(ranges: Ranges, code: number): boolean {
  return ranges.some(([low, high]) => code >= low && code <= high)
}

function getSize(ranges: Ranges): number {
  return ranges.reduce((sum, [low, high]) => sum + high - low + 1, 0)
}

// ---- writing -------------------------------------------------------------------------------------------------------

function sequence(parts: readonly Written[]): Written {
  if (parts.length === 1) return parts[0]!
  const written = parts.map(part => (part.isChoice ? group(part) : part))
  const sum = (of: 'min' | 'max') => parts.reduce((total, part) => total + part[of], 0)
  const depth = Math.max(0, ...written.map(part => part.depth))
  return { text: written.map(({ text }) => text).join(''), min: sum('min'), max: sum('max'), depth }
}

function choice(parts: readonly Written[]): Written {
  if (parts.length === 1) return parts[0]!
  const [min, max] = [Math.min(...parts.map(each => each.min)), Math.max(...parts.map(each => each.max))]
  const depth = Math.max(...parts.map(part => part.depth))
  return { text: parts.map(({ text }) => text).join('|'), min, max, depth, isChoice: true }
}

/** @throws Unsupported */
function group({ text, min, max, depth }: Written): Written {
  if (depth >= MAX_DEPTH) throw new Unsupported()
  return { text: `(${text})`, min, max, depth: depth + 1 }
}

/** @throws Unsupported */
function repeat(part: Written, least: number, most: number): Written {
  if (most === 0 || part.max === 0) return NOTHING
  if (least > MAX_REPETITIONS) throw new Unsupported()
  if (least === 1 && most === 1) return part
  const set = part.times ? undefined : part.set
  const { text, depth } = set ? makeSet(set, true) : group(part)
  const bounds = `${least},${most > MAX_REPETITIONS ? '' : most}`
  const signs: Record<string, string> = { '0,': '*', '1,': '+', '0,1': '?' }
  // llama.cpp multiplies repetitions by everything inside, unless their limits are written out.
  const sign = text.includes('{') || text.length > LONG_GROUP ? undefined : signs[bounds]
  return {
    text: text + (sign ?? (least === most ? `{${least}}` : `{${bounds}}`)),
    min: part.min * least,
    max: most > MAX_REPETITIONS ? Number.POSITIVE_INFINITY : part.max * most,
    depth,
    ...(set && { set, times: [least, most] })
  }
}

/** Writes one character of a JSON string from a set. Characters with a meaning in JSON are escaped. */
function makeSet(set: Ranges, isRepeated = false): Written {
  const plain = without(set, ESCAPED)
  const letters = [...SHORT_ESCAPES].flatMap(([code, letter]) => (has(set, code) ? [letter] : []))
  const parts: string[] = []
  if (plain.length === 1 && getSize(plain) === 1 && !isRepeated) parts.push(literal(plain[0]![0]))
  else if (plain.length > 0) parts.push(`[${plain.map(rangeText).join('')}]`)
  if (letters.length > 0) parts.push(`\\\\[${letters.join('')}]`)
  for (let code = 0; code < 32 && getSize(set) <= SMALL_SET; code++) {
    const isOther = has(set, code) && !SHORT_ESCAPES.has(code)
    if (isOther) parts.push(`\\\\u00${code.toString(16).padStart(2, '0')}`)
  }
  if (parts.length === 0) throw new Unsupported()
  const isAlone = parts.length === 1 && (!isRepeated || plain.length > 0)
  return { text: isAlone ? parts[0]! : `(${parts.join('|')})`, min: 1, max: 1, depth: isAlone ? 0 : 1, set }
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
  const digits = code.toString(16).toUpperCase()
  return code > 0xffff ? `\\U${digits.padStart(8, '0')}` : `\\u${digits.padStart(4, '0')}`
}

type Member = AST.CharacterClassElement | AST.CharacterClass | AST.Character | AST.CharacterSet

class PatternWriter {
  /** Whether the result admits more than the source. */
  loose = false

  /** @param isWhole whether the alternatives are the whole text. Each may then be anchored at its ends */
  choice(alternatives: readonly AST.Alternative[], isWhole = false): Written {
    return choice(alternatives.map(({ elements }) => (isWhole ? this.#whole(elements) : this.#sequence(elements))))
  }

  #sequence(elements: readonly AST.Element[]): Written {
    return elements.length === 0 ? NOTHING : sequence(elements.map(element => this.#write(element)))
  }

  #whole(elements: readonly AST.Element[]): Written {
    const [only] = elements
    if (elements.length === 1 && (only!.type === 'Group' || only!.type === 'CapturingGroup')) {
      return this.choice(only!.alternatives, true)
    }
    const isAnchor = (at: number, kind: 'start' | 'end') => {
      const element = elements[at]
      return element?.type === 'Assertion' && element.kind === kind
    }
    let [from, to] = [0, elements.length]
    while (isAnchor(from, 'start')) from++
    while (to > from && isAnchor(to - 1, 'end')) to--
    const text = this.#sequence(elements.slice(from, to))
    return sequence([...(from > 0 ? [] : [ANYTHING]), text, ...(to < elements.length ? [] : [ANYTHING])])
  }

  #loosely(written: Written): Written {
    this.loose = true
    return written
  }

  #write(element: AST.Element): Written {
    switch (element.type) {
      case 'Group':
      case 'CapturingGroup':
        if ('modifiers' in element && element.modifiers) throw new Unsupported()
        return this.choice(element.alternatives)
      case 'Quantifier': {
        const { min, max } = element
        if (max !== Number.POSITIVE_INFINITY && max > MAX_REPETITIONS) this.loose = true
        return repeat(this.#write(element.element), min, max)
      }
      case 'Assertion':
        return this.#loosely(NOTHING)
      case 'Backreference':
        return this.#loosely(ANYTHING)
      case 'ExpressionCharacterClass':
        throw new Unsupported()
      default:
        return makeSet(this.#ranges(element))
    }
  }

  #ranges(member: Member): Ranges {
    switch (member.type) {
      case 'Character':
        // In other dialects, `\A` and `\z` are assertions.
        if (/^\\[A-Za-z]$/.test(member.raw) && member.raw[1] === String.fromCodePoint(member.value)) {
          throw new Unsupported()
        }
        return [[member.value, member.value]]
      case 'CharacterClassRange':
        return [[member.min.value, member.max.value]]
      case 'CharacterSet':
        if (member.kind === 'any') return CLASSES.any
        if (member.kind !== 'property') {
          return member.negate ? complement(CLASSES[member.kind]) : CLASSES[member.kind]
        }
        this.loose = true
        return EVERYTHING
      case 'CharacterClass': {
        const set = union(member.elements.flatMap(each => this.#ranges(each as Member)))
        return member.negate ? complement(set) : set
      }
      default:
        throw new Unsupported()
    }
  }
}
