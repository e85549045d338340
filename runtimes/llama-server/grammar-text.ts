import { getOrAdd } from '../../core/system/collections.ts'
import { type Element, GrammarRules, TooCostly } from './grammar-cost.ts'

/** llama.cpp's parser recurses for each nested parenthesis. */
const DEEPEST = 200

/** llama.cpp cannot parse the text, and explains why better than this parser could. */
export class NotReadable extends Error {
  override readonly name = 'NotReadable'
}

/**
 * Parses a grammar in GBNF. Counting starts at `root`, at every rule, and at every position after fixed text.
 * @param isStart whether counting also starts at a rule with this name @throws NotReadable, TooCostly
 */
export function readGrammar(text: string, isStart: (name: string) => boolean = () => true) {
  const rules = new GrammarRules()
  const names = new Map<string, number>()
  const starts: number[] = []
  /** The meanings of the rules at which counting starts, by rule. Rules with equal meanings are counted once. */
  const meanings = new Map<number, string>()
  const known = new Set<string>()
  let at = 0
  let depth = 0

  const ruleOf = (name: string) => getOrAdd(names, name, () => rules.add())
  const skip = (lines: boolean) => {
    for (; at < text.length; at++) {
      const character = text[at]!
      if (character === '#') while (at + 1 < text.length && text[at + 1] !== '\n' && text[at + 1] !== '\r') at++
      else if (character !== ' ' && character !== '\t' && !(lines && (character === '\n' || character === '\r'))) return
    }
  }
  const take = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at
    const found = pattern.exec(text)?.[0]
    if (found !== undefined) at += found.length
    return found
  }
  const character = (): number => {
    const escaped = take(/\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)/sy)
    if (escaped) {
      const plain = { t: 9, r: 13, n: 10 }[escaped[1]!]
      return plain ?? (escaped.length > 2 ? Number.parseInt(escaped.slice(2), 16) : escaped.codePointAt(1)!)
    }
    const code = text.codePointAt(at)
    if (code === undefined) throw new NotReadable()
    at += code > 0xffff ? 2 : 1
    return code
  }

  const literal = (): Element[] => {
    const made: Element[] = []
    for (at++; text[at] !== '"'; ) {
      const code = character()
      made.push({ ranges: [[code, code]] })
    }
    at++
    return made
  }
  const characterClass = (): Element[] => {
    at++
    const negated = text[at] === '^'
    if (negated) at++
    const ranges: [number, number][] = []
    while (text[at] !== ']') {
      const low = character()
      const isRange = text[at] === '-' && text[at + 1] !== ']'
      if (isRange) at++
      ranges.push([low, isRange ? character() : low])
    }
    at++
    return [{ ranges, negated }]
  }

  const sequence = (nested: boolean): Element[] => {
    const made: Element[] = []
    let piece: Element[] = []
    for (;;) {
      const next = text[at]
      const quantifier = take(/[*+?]|\{[ \t\r\n]*\d+[ \t\r\n]*(?:,[ \t\r\n]*\d*[ \t\r\n]*)?\}/y)
      if (quantifier) {
        if (piece.length === 0) throw new NotReadable()
        const [least, most] = parseQuantifier(quantifier)
        // llama.cpp would write rules until memory is full.
        if (least > most) throw new NotReadable()
        piece = rules.repeat(piece, least, most)
      } else {
        // There may be too many for the arguments of one call.
        for (const each of piece) made.push(each)
        const name = take(/[a-zA-Z0-9-]+/y)
        if (name) piece = [{ rule: ruleOf(name) }]
        else if (next === '"') piece = literal()
        else if (next === '[') piece = characterClass()
        else if (next === '.') {
          at++
          piece = [{ ranges: [], negated: true }]
        } else if (next === '(') {
          if (++depth > DEEPEST) throw new TooCostly()
          at++
          skip(true)
          const rule = rules.add()
          rules.set(rule, alternatives(true))
          depth--
          if (text[at] !== ')') throw new NotReadable()
          at++
          piece = [{ rule }]
        } else if (take(/!?<[^>\n]*>/y)) piece = [{ ranges: [[0x10_ff_ff, 0x10_ff_ff]] }]
        else return made
      }
      skip(nested)
    }
  }
  const alternatives = (nested: boolean): Element[][] => {
    const made = [sequence(nested)]
    while (text[at] === '|') {
      at++
      skip(true)
      made.push(sequence(nested))
    }
    return made
  }

  ruleOf('root')
  for (skip(true); at < text.length; skip(true)) {
    const name = take(/[a-zA-Z0-9-]+/y)
    if (!name) throw new NotReadable()
    skip(false)
    if (!take(/::=/y)) throw new NotReadable()
    skip(true)
    const begin = at
    const made = alternatives(false)
    const rule = ruleOf(name)
    rules.set(rule, made)
    const meaning = text.slice(begin, at).trim()
    if (isStart(name)) meanings.set(rule, meaning)
    for (const elements of isStart(name) && !known.has(meaning) ? made : []) {
      const behind = elements.findIndex(
        (element, index) => index > 0 && 'rule' in element && !('rule' in elements[index - 1]!)
      )
      if (behind > 0) starts.push(rules.add([elements.slice(behind)]))
    }
    if (isStart(name)) known.add(meaning)
    if (at < text.length && text[at] !== '\n' && text[at] !== '\r') throw new NotReadable()
  }
  // Done at the end, because a later definition of a name replaces an earlier one.
  const counted = new Map([...meanings].map(([rule, meaning]) => [meaning, rule]))
  return { rules, starts: [...counted.values(), ...starts] }
}

/** Parses the numbers of `*`, `+`, `?`, `{2}`, `{2,}` and `{2,3}`. */
export function parseQuantifier(quantifier: string): [number, number] {
  if (quantifier === '*') return [0, Number.POSITIVE_INFINITY]
  if (quantifier === '+') return [1, Number.POSITIVE_INFINITY]
  if (quantifier === '?') return [0, 1]
  const [least = '', most] = quantifier
    .slice(1, -1)
    .split(',')
    .map(part => part.trim())
  if (most === undefined) return [Number(least), Number(least)]
  return [Number(least), most === '' ? Number.POSITIVE_INFINITY : Number(most)]
}
