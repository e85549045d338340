/*
 * Writes Lark grammars of freeform tools as regular expressions, which engines can enforce within the JSON of a call.
 * Grammars whose rules contain themselves are not regular, so they are only described to the model.
 */

/** Lark's own terminals, which grammars import from `common`. */
const COMMON: Record<string, string> = {
  CNAME: '[A-Za-z_][A-Za-z0-9_]*',
  CR: '\\r',
  DECIMAL: '(?:[0-9]+\\.[0-9]*|\\.[0-9]+)',
  DIGIT: '[0-9]',
  ESCAPED_STRING: '"(?:[^"\\\\\\n]|\\\\[^\\n])*"',
  HEXDIGIT: '[0-9A-Fa-f]',
  INT: '[0-9]+',
  LCASE_LETTER: '[a-z]',
  LETTER: '[A-Za-z]',
  LF: '\\n',
  NEWLINE: '(?:\\r?\\n)+',
  NUMBER: '(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?',
  SIGNED_INT: '[+-]?[0-9]+',
  SIGNED_NUMBER: '[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[Ee][+-]?[0-9]+)?',
  UCASE_LETTER: '[A-Z]',
  WORD: '[A-Za-z]+',
  WS: '[ \\t\\f\\r\\n]+',
  WS_INLINE: '[ \\t]+'
}

const MAX_GRAMMAR_LENGTH = 10_000
/** Longer expressions are only described, because engines would refuse them. */
export const MAX_PATTERN_LENGTH = 2000

const HEAD = /^\s*(?:%|[?!]*([A-Za-z_]\w*)(?:\.-?\d+)?\s*:)/
const IMPORT = /^\s*%import\s+common\s*(?:\.\s*(\w+)\s*(?:->\s*(\w+)\s*)?|\(([\w\s,]+)\)\s*)$/
const BLANK = '(?:\\s|//[^\\n]*(?:\\n|$))*'
const TOKEN = new RegExp(
  `${BLANK}(?:(?<text>"(?:\\\\.|[^"\\\\\\n])*")(?<folded>i?)|/(?<expression>(?:\\\\.|[^/\\\\\\n])+)/(?<flags>[a-z]*)|(?<alias>->\\s*\\w+)|(?<name>[A-Za-z_]\\w*)|~\\s*(?<least>\\d+)(?:\\s*\\.\\.\\s*(?<most>\\d+))?|(?<sign>\\.\\.|[|()[\\]?*+]))`,
  'y'
)
const REST = new RegExp(`${BLANK}$`, 'y')

type Token = Partial<Record<string, string>>

/** Returns an expression that matches the texts of a grammar. Undefined if there is none, or only a long one. */
export function larkPattern(grammar: string): string | undefined {
  if (grammar.length > MAX_GRAMMAR_LENGTH) return undefined
  try {
    return new LarkReader(grammar).rule('start')
  } catch {
    // Only the model reads other grammars, and incorrect ones.
    return undefined
  }
}

class LarkReader {
  readonly #bodies = new Map<string, string>()
  readonly #patterns = new Map<string, string>()
  readonly #open = new Set<string>()

  constructor(grammar: string) {
    let current = ''
    for (const line of grammar.split('\n')) {
      const [start = '', name] = HEAD.exec(line) ?? []
      if (name) {
        current = name
        this.#bodies.set(name, line.slice(start.length))
      } else if (start) this.#import(line)
      else this.#bodies.set(current, `${this.#bodies.get(current) ?? ''}\n${line}`)
    }
  }

  #import(line: string): void {
    const [, single, alias = single, list] = need(IMPORT.exec(line))
    const names = list === undefined ? [[single, alias]] : list.split(',').map(name => [name.trim(), name.trim()])
    for (const [name, own] of names) this.#patterns.set(own!, need(COMMON[name!]))
  }

  rule(name: string): string {
    const known = this.#patterns.get(name)
    if (known !== undefined) return known
    if (this.#open.has(name)) throw new Error('recursive')
    this.#open.add(name)
    const pattern = this.#alternatives(tokens(need(this.#bodies.get(name))), 'end')
    this.#open.delete(name)
    this.#patterns.set(name, pattern)
    return pattern
  }

  /** Takes alternatives and the sign after them. */
  #alternatives(left: Token[], end: string): string {
    const done: string[] = []
    let before = ''
    /** What a sign repeats. */
    let last = ''
    const add = (piece: string) => {
      before += last
      last = piece
    }
    for (;;) {
      const { sign, name, text, expression, alias, least, most = least, folded, flags } = need(left.shift())
      if (sign === end) break
      if (alias !== undefined) continue
      if (sign === '|') {
        done.push(before + last)
        before = ''
        last = ''
      } else if (least !== undefined) last = `(?:${need(last)}){${least},${most}}`
      else if (sign === '(') add(`(?:${this.#alternatives(left, ')')})`)
      else if (sign === '[') add(`(?:${this.#alternatives(left, ']')})?`)
      else if (sign !== undefined) last = `(?:${need(last)})${need(/^[?*+]$/.exec(sign))[0]}`
      else if (name !== undefined) add(`(?:${this.rule(name)})`)
      else if (expression !== undefined) add(`(?:${withDots(expression, flags!)})`)
      else if (left[0]?.sign === '..') {
        left.shift()
        add(`[${literal(text!)}-${literal(need(left.shift()?.text))}]`)
      } else add(literal(text!, folded))
    }
    const pattern = [...done, before + last].join('|')
    if (pattern.length > MAX_PATTERN_LENGTH) throw new Error('too long')
    return pattern
  }
}

function need<Value>(value: Value | null | undefined): Value {
  if (value === undefined || value === null || value === '') throw new Error('not supported')
  return value
}

function tokens(body: string): Token[] {
  const found: Token[] = []
  let at = 0
  const take = (pattern: RegExp) => {
    pattern.lastIndex = at
    return pattern.exec(body)
  }
  while (!take(REST)) {
    const token = need(take(TOKEN))
    at = TOKEN.lastIndex
    found.push(token.groups!)
  }
  return [...found, { sign: 'end' }]
}

/** The dot of Lark's expressions matches everything but line feeds. */
function withDots(expression: string, flags: string): string {
  if (!/^[su]*$/.test(flags)) throw new Error('not supported')
  const dot = flags.includes('s') ? '[\\s\\S]' : '[^\\n]'
  return expression.replace(/\\.|\[(?:\\.|[^\]\\])*\]|\./g, found => (found === '.' ? dot : found))
}

function literal(text: string, folded = ''): string {
  const characters = [...(JSON.parse(text) as string)].map(character => {
    const [low, high] = [character.toLowerCase(), character.toUpperCase()]
    if (folded && low !== high) return `[${low}${high}]`
    return character.replace(/[\\^$.*+?()[\]{}|/]/, '\\$&').replace('\n', '\\n')
  })
  return characters.join('')
}
