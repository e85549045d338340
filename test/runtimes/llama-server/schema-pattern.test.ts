import t from 'tap'
import { countWays, type Element, TooCostly } from '../../../runtimes/llama-server/grammar-cost.ts'
import { readGrammar } from '../../../runtimes/llama-server/grammar-text.ts'
import { schemaGrammar, textMatcher } from '../../../runtimes/llama-server/schema-grammar.ts'
import { compilePattern, textsPattern } from '../../../runtimes/llama-server/schema-pattern.ts'
import { readFixture } from '../../support/fixture.ts'
import { randomBelow } from '../../support/random.ts'

const cases = readFixture<{
  admitted: string[]
  loose: [source: string, pattern: string][]
  entirelyLoose: string[]
  matched: string[]
  malformed: string[]
  tightened: [source: string, min: number, max: number | null, pattern: string][]
}>('pattern-cases.yaml')
const SEED = 7
const next = randomBelow(SEED)

/** Returns a random JSON text that the grammar of a pattern admits. */
function sample(pattern: string): string {
  const { rules } = readGrammar(schemaGrammar({ type: 'string', pattern }).text).rules
  const write = (rule: number, depth: number): string => {
    const alternatives = rules[rule]!
    // Long repetitions end.
    let at = depth > 40 && alternatives.includes(undefined) ? undefined : alternatives[next(alternatives.length)]
    let text = ''
    for (; at; at = at.next) text += 'rule' in at.element ? write(at.element.rule, depth + 1) : characterOf(at.element)
    return text
  }
  return write(0, 0)
}

function characterOf({ ranges, negated }: Exclude<Element, { rule: number }>): string {
  if (negated) throw new Error('a set is written as a complement')
  const [low, high] = ranges[next(ranges.length)]!
  return String.fromCodePoint(low + next(Math.min(200, high - low + 1)))
}

t.test('grammars of patterns admit only JSON strings that match', async t => {
  for (const source of cases.admitted) {
    const compiled = compilePattern(source)
    const expression = regexOf(source)
    const faults: string[] = []
    for (let count = 0; count < 60; count++) {
      const json = sample(compiled!.pattern)
      const text = JSON.parse(json)
      const { length } = [...text]
      if (!expression.test(text)) faults.push(json)
      if (length < compiled!.min || length > compiled!.max) faults.push(`length of ${json}`)
    }
    t.same(faults, [], source)
  }
})

function regexOf(source: string): RegExp {
  try {
    return new RegExp(source, 'u')
  } catch {
    return new RegExp(source)
  }
}

t.test('texts match like the regular expression', async t => {
  const letters = ['a', 'b', 'ab', '"', '\\', '1', ' ', 'é', '😀']
  for (const source of cases.matched) {
    const matches = textMatcher(compilePattern(source)!.pattern)
    const faults: string[] = []
    for (let count = 0; count < 200; count++) {
      const text = Array.from({ length: next(6) }, () => letters[next(letters.length)]).join('')
      if (matches(text) !== new RegExp(source, 'u').test(text)) faults.push(text)
    }
    t.same(faults, [], source)
  }
  t.equal(textMatcher('^[a]*$')('\n'), undefined, 'a character that JSON may write in two ways')
  const slow = textMatcher(compilePattern('^((a?){1000}){1000}$')!.pattern)
  t.equal(slow('a'.repeat(1000)), undefined, 'a match that takes long')
})

t.test('patterns that grammars cannot enforce entirely are loose', async t => {
  for (const [source, pattern] of cases.loose) {
    const compiled = compilePattern(source)!
    t.match(compiled, { pattern, loose: true }, source)
  }
  for (const source of cases.entirelyLoose) {
    const { loose, pattern } = compilePattern(source)!
    t.ok(loose, source)
    for (let count = 0; count < 20; count++) t.type(JSON.parse(sample(pattern)), 'string')
  }
  for (const source of ['^[]$', String.raw`^[^\p{L}]$`, '^a{2001}$', String.raw`^\Aab\z$`]) {
    t.equal(compilePattern(source), undefined, source.slice(0, 20))
  }
  for (const source of cases.malformed) {
    t.throws(() => compilePattern(source), SyntaxError, source)
  }
})

t.test('costly expressions are rejected for their cost, and compiled quickly', async t => {
  const sources = [
    '^(a{1,1000}){1,1000}$',
    '^(((a{0,100}){0,100}){0,100}){0,100}$',
    `^${'(a|b'.repeat(80)}${')*'.repeat(80)}$`
  ]
  for (const source of sources) {
    const cost = () =>
      countWays(readGrammar(schemaGrammar({ type: 'string', pattern: compilePattern(source)!.pattern }).text), 20_000)
    try {
      t.ok(cost() > 20_000, source.slice(0, 40))
    } catch (error) {
      t.type(error, TooCostly)
    }
  }
})

t.test('lengths tighten one repeated set', async t => {
  for (const [source, min, max, pattern] of cases.tightened)
    t.equal(compilePattern(source, { min, max: max ?? Number.POSITIVE_INFINITY })!.pattern, pattern, source)
})

t.test('texts share their prefixes', async t => {
  const texts = ['red', 'green', 'blue', 'bluer', '"q"', 'a\\b', 'a\nb', '', '😀']
  const pattern = textsPattern(texts)!
  const found = new Set(Array.from({ length: 500 }, () => JSON.parse(sample(pattern))))
  t.strictSame([...found].sort(), texts.sort())
  t.equal(textsPattern(['\ud800']), undefined)
  t.equal(textsPattern(['a'.repeat(1000)]), undefined)
})
