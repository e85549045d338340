import t from 'tap'
import { countWays, type Element, TooCostly } from '../../../runtimes/llama-server/grammar-cost.ts'
import { readGrammar } from '../../../runtimes/llama-server/grammar-text.ts'
import { schemaGrammar } from '../../../runtimes/llama-server/schema-grammar.ts'
import { compilePattern, textsPattern } from '../../../runtimes/llama-server/schema-pattern.ts'
import { randomBelow } from '../../support/random.ts'

const SEED = 7
const next = randomBelow(SEED)

/** Returns a random JSON text that the grammar of a pattern admits. */
function sample(pattern: string): string {
  const { rules } = readGrammar(schemaGrammar({ type: 'string', pattern }).text).rules
  const write = (rule: number, depth: number): string => {
    const alternatives = rules[rule]!
    // Long repetitions end.
    const shortest = alternatives.find(({ length }) => length === 0)
    const chosen = shortest && depth > 40 ? shortest : alternatives[next(alternatives.length)]!
    return chosen.map((each: Element) => ('rule' in each ? write(each.rule, depth + 1) : characterOf(each))).join('')
  }
  return write(0, 0)
}

function characterOf({ ranges, negated }: Exclude<Element, { rule: number }>): string {
  if (negated) throw new Error('a set is written as a complement')
  const [low, high] = ranges[next(ranges.length)]!
  return String.fromCodePoint(low + next(Math.min(200, high - low + 1)))
}

t.test('grammars of patterns admit only JSON strings that match', async t => {
  const patterns = [
    String.raw`^\d{2}$`,
    String.raw`^[\w.-]+$`,
    '[0-9]{3}',
    String.raw`^a\s$`,
    '^.{3,40}$',
    String.raw`^[^"\\]+$`,
    '^[^a-z]{2,5}$',
    String.raw`^\D\W\S[\D\d]$`,
    String.raw`^[\d\s_-]*$`,
    String.raw`^["'\\/\[\]^-]{4}$`,
    String.raw`^"(\\|")*\/$`,
    String.raw`^\x41\u00e9\u{1F600}\t\n\r\f\v\0\cA[\b]$`,
    String.raw`^[\ud83d\ude00-\ud83d\ude4f]+$`,
    '^(?<year>[0-9]{4})-(?:0[1-9]|1[0-2])$',
    '^(?:a|bc|)+?x{0}y{1}z{2,}?$',
    '^a|b$',
    '^(^a$|^b$)$|^(x|y)$',
    'foo',
    '',
    '^$',
    '^é+ß*$',
    String.raw`^\.\*\+\?\(\)\[\]\{\}\|\^\$$`,
    '^[^]$',
    '^[a-c-e]{3}[.*+?(){}|$]{4}$',
    '^[---]{2}[+--]$',
    '^(((a|b)*c)?d)+$',
    '^#-{"a":%20}~@ ;,&=<>!$',
    String.raw`^\w+([.-]?\w+)*@\w+([.-]?\w+)*(\.\w{2,3})+$`
  ]
  for (const source of patterns) {
    const compiled = compilePattern(source)
    const expression = regexOf(source)
    const faults: string[] = []
    for (let count = 0; count < 60; count++) {
      const json = sample(compiled!.pattern)
      const text = JSON.parse(json)
      const { length } = [...text]
      if (!expression.test(text) || compiled!.matches(text) === false) faults.push(json)
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
  const letters = ['a', 'b', 'ab', '"', '\\', '\n', '1', ' ', 'é', '😀']
  for (const source of [
    '^(a|ab)(b|)*$',
    'b{2,3}',
    '^[^a]*$',
    '^.+$',
    String.raw`^(\w|\s)*\d?$`,
    '^a{0,2}b?$',
    'a|^b'
  ]) {
    const { matches } = compilePattern(source)!
    const faults: string[] = []
    for (let count = 0; count < 200; count++) {
      const text = Array.from({ length: next(6) }, () => letters[next(letters.length)]).join('')
      if (matches(text) !== new RegExp(source, 'u').test(text)) faults.push(text)
    }
    t.same(faults, [], source)
  }
  t.equal(compilePattern('^((a?){1000}){1000}$')!.matches('a'.repeat(1000)), undefined, 'a match that takes long')
})

t.test('patterns that grammars cannot enforce entirely are loose', async t => {
  const cases: [source: string, pattern: string][] = [
    ['^(?!x)[a-z]{2}$', '^[a-z]{2}$'],
    ['^(?=.*[a-z])(?<=a)(?<!b)a$', '^a$'],
    [String.raw`^\bwor\Bd\b$`, '^word$'],
    ['^(^a|b)c$', '^(a|b)c$'],
    ['^a^b$', '^ab$'],
    ['^a{0,3000}$', '^[a]*$']
  ]
  for (const [source, pattern] of cases) {
    const compiled = compilePattern(source)!
    t.match(compiled, { pattern, loose: true }, source)
    t.equal(compiled.matches('word'), source.includes('wor') ? undefined : false, source)
  }
  for (const source of [
    String.raw`^\p{L}+$`,
    String.raw`^[a\p{L}]$`,
    String.raw`^(a)\1$`,
    String.raw`^(?<x>a)\k<x>$`
  ]) {
    const { loose, pattern } = compilePattern(source)!
    t.ok(loose, source)
    for (let count = 0; count < 20; count++) t.type(JSON.parse(sample(pattern)), 'string')
  }
  for (const source of [
    '^[]$',
    String.raw`^[^\p{L}]$`,
    '^a{2001}$',
    String.raw`^\Aab\z$`,
    `^${'('.repeat(500)}a${')'.repeat(500)}$`
  ]) {
    t.equal(compilePattern(source), undefined, source.slice(0, 20))
  }
  for (const source of ['(', 'a)', '*', '[a', '[b-a]', 'a{2,1}', 'a**', '\\']) {
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
  const inf = Number.POSITIVE_INFINITY
  const cases: [string, number, number, string][] = [
    ['^[a-z]+$', 0, 5, '^[a-z]{1,5}$'],
    ['^[a-z]*$', 2, inf, '^[a-z]{2,}$'],
    ['^[a-z]{3,9}$', 5, 7, '^[a-z]{5,7}$'],
    ['^[a-z]{3}$', 4, 7, '^[a-z]{3}$'],
    ['^[a-z]+-$', 3, 4, '^[a-z]+-$']
  ]
  for (const [source, min, max, pattern] of cases)
    t.equal(compilePattern(source, { min, max })!.pattern, pattern, source)
})

t.test('texts share their prefixes', async t => {
  const texts = ['red', 'green', 'blue', 'bluer', '"q"', 'a\\b', 'a\nb', '', '😀']
  const pattern = textsPattern(texts)!
  const found = new Set(Array.from({ length: 500 }, () => JSON.parse(sample(pattern))))
  t.strictSame([...found].sort(), texts.sort())
  t.equal(textsPattern(['\ud800']), undefined)
  t.equal(textsPattern(['a'.repeat(1000)]), undefined)
})
