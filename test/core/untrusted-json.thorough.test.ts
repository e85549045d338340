import { setImmediate as nextTurn } from 'node:timers/promises'
import t from 'tap'
import { parseUntrustedJson } from '../../core/system/untrusted-json.ts'
import { readCases } from '../support/fixture.ts'
import { randomNumbers } from '../support/random.ts'
import { sample } from '../support/thorough.ts'
import { trialCount } from '../support/trial-count.ts'

/** Whitespace that is longer than a slice, so that the lists and objects around it are parsed in groups. */
const GAP = ' '.repeat(150_000)
/** The text unchanged, and with a long gap at one or all of its spaces. */
const spread = (text: string) => [
  text,
  text.replaceAll(' ', GAP),
  ...[...text.matchAll(/ /g)].map(({ index }) => text.slice(0, index) + GAP + text.slice(index + 1))
]

t.test('parseUntrustedJson parses in slices like JSON.parse', async t => {
  const texts = readCases<string[]>('core-cases.yaml', 'untrustedJson')
  for (const text of sample(texts.flatMap(spread), 6))
    t.same(await parseUntrustedJson(text), { value: JSON.parse(text) }, text.slice(0, 60))
  const next = randomNumbers(7)
  const value = (depth: number): unknown => {
    const items = Array.from({ length: depth > 4 ? 0 : Math.floor(next() * 12) }, () => value(depth + 1))
    const kind = Math.floor(next() * 4)
    if (kind === 0) return 'x"\\,[{'.repeat(Math.floor(next() * 2000))
    if (kind === 1) return next()
    return kind === 2 ? items : Object.fromEntries(items.map((item, index) => [`k"${index}`, item]))
  }
  for (let round = 0; round < trialCount(5); round++) {
    const whole = Array.from({ length: 30 }, () => value(0))
    t.same(await parseUntrustedJson(JSON.stringify(whole, undefined, round % 3)), { value: whole })
  }
})

t.test('parseUntrustedJson refuses malformed JSON in slices too', async t => {
  const texts =
    '[ 1 , ]|[ , 1 ]|[ 1 , , 2 ]|[ 1 2 ]|[ [ ] [ ] ]|[ [ ] 1 ]|{ "a" 1 }|{ "a" : 1 , }|{ "a" : 1 { } }|{ [ ] }|{ 1 : 2 }|' +
    '[ 1 }|{ "a" : 1 ]|[ 1|] |[ ] ]|[ ] 1|[ ] [ ]|{ "a" : [ }|{ "a" , "b" : [ 1 ] }|[ "a" : 1 ]|[ NaN ]|"a| '
  for (const text of sample(texts.split('|').flatMap(spread), 6)) {
    t.match(await parseUntrustedJson(text), { fault: /^it is not JSON/ }, text.replaceAll(GAP, '…'))
  }
})

t.test("parseUntrustedJson accepts Python's NaN and Infinity, outside of strings", async t => {
  const text = '{ "NaN" : NaN , "a" : [ Infinity , -Infinity , "Infinity" , [ NaN ] ] , "b" : "-Infinity,NaN" }'
  const expected = {
    NaN: null,
    a: [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 'Infinity', [null]],
    b: '-Infinity,NaN'
  }
  for (const spreadText of spread(text)) {
    t.same(await parseUntrustedJson(spreadText, { python: true }), { value: expected })
  }
  const mistakes = '-NaN|+Infinity|1Infinity|Infinity1|1NaN|NaNNaN|Infinit|Nan|--Infinity|- Infinity|{NaN:1}|N'
  for (const wrong of mistakes.split('|')) {
    t.match(await parseUntrustedJson(`[${wrong}]`, { python: true }), { fault: /^it is not JSON/ }, wrong)
  }
})

t.test('parseUntrustedJson refuses JSON beyond a limit before parsing it', async t => {
  const cases: [string, RegExp][] = [
    [`${'['.repeat(100)}${']'.repeat(100)}`, /more than 64 levels/],
    ['{"a":'.repeat(200_000), /more than 64 levels/],
    [`[${'[],'.repeat(1_100_000)}0]`, /more than 1,000,000 lists, objects and keys/],
    [`{${Array.from({ length: 1_100_000 }, (_, index) => `"${index}":1`)}}`, /more than 1,000,000 lists/],
    [`[${'1,'.repeat(4_100_000)}1]`, /more than 4,000,000 values/],
    [`["${'x'.repeat(5e6)}"]`, /a string of more than 4 MiB/],
    [`["${'\\"'.repeat(3e6)}"]`, /a string of more than 4 MiB/]
  ]
  for (const [text, fault] of sample(cases, 2)) t.match(await parseUntrustedJson(text), { fault }, text.slice(0, 20))
})

t.test('other work gets its turn while JSON is parsed', async t => {
  const text = `{"a":[${'[1],'.repeat(300_000)}0],"b":{${Array.from({ length: 300_000 }, (_, index) => `"${index}":1`)}}}`
  let turns = 0
  let isDone = false
  const parsing = parseUntrustedJson(text).finally(() => {
    isDone = true
  })
  while (!isDone) {
    await nextTurn()
    turns++
  }
  const { a, b } = (await parsing).value as { a: unknown[]; b: object }
  t.equal(a.length, 300_001)
  t.equal(Object.keys(b).length, 300_000)
  t.ok(turns >= text.length / 2 ** 20, `${turns} turns for ${text.length} characters`)
})
