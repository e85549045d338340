import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { parseJson, readJsonFile, readJsonFileSync, writeJsonFile } from '../../core/system/json-file.ts'
import { type JsonExcess, JsonScan } from '../../core/system/json-scan.ts'
import { allowedBy, faultSentence, findFault } from '../../core/system/schema-check.ts'
import { readCases } from '../support/fixture.ts'
import { trialCount } from '../support/trial-count.ts'

const Schema = Type.Object({ version: Type.Literal(1), names: Type.Array(Type.String({ minLength: 1 })) })

t.test('writeJsonFile and readJsonFile round-trip and check a file', async t => {
  const path = join(t.testdir(), 'below', 'record.json')
  t.equal(await readJsonFile(path, Schema), undefined, 'there is none')
  t.equal(readJsonFileSync(path, Schema), undefined)
  const found = await readJsonFile(join(import.meta.filename, 'x.json'), Schema)
  t.equal(found, undefined, 'a file where its folder should be')

  const value = { version: 1 as const, names: ['a', 'b'] }
  await writeJsonFile(path, value, { mode: 0o600 })
  t.equal(readFileSync(path, 'utf8'), '{"version":1,"names":["a","b"]}\n')
  if (process.platform !== 'win32') t.equal(statSync(path).mode & 0o777, 0o600)
  t.same(await readJsonFile(path, Schema), { value })
  t.same(readJsonFileSync(path, Schema), { value })
  await writeJsonFile(path, value, { pretty: true })
  t.match(readFileSync(path, 'utf8'), /^\{\n {2}"version": 1,/)

  await t.rejects(readJsonFile(join(path, '..'), Schema), { code: 'EISDIR' })
  writeFileSync(path, '{"version":1,"names":["a"')
  t.match(await readJsonFile(path, Schema), { value: undefined, fault: /^it is not JSON: / })
})

t.test('parseJson refuses JSON that does not match the schema', async t => {
  for (const [text, fault] of readCases<[string, RegExp][]>('core-cases.yaml', 'jsonFaults')) {
    t.match(parseJson(text, Schema), { value: undefined, fault }, text)
  }
  t.same(parseJson('{"version":1,"names":[],"more":1}', Schema).value, { version: 1, names: [], more: 1 })
})

/** Scans in slices of a few characters, as for long texts. */
function scanned(text: string, most: { depth?: number; values?: number; members?: number }, slice: number) {
  const { depth = 1e9, values = 1e9, members = 1e9 } = most
  const scan = new JsonScan(text, depth, values, members)
  let excess: JsonExcess | undefined
  for (let end = slice; !excess && end < text.length + slice; end += slice)
    excess = scan.next(Math.min(end, text.length))
  return excess
}
const hasMoreValues = (text: string, values: number) => {
  const found = [1, 2, 3, 7, text.length + 1].map(slice => scanned(text, { values }, slice) === 'values')
  if (new Set(found).size > 1) throw new Error(`${text} has other counts in slices`)
  return found[0]!
}

t.test('JsonScan counts values outside of strings', async t => {
  const cases: [string, number, boolean][] = readCases('core-cases.yaml', 'jsonValues')
  for (const [text, most, more] of cases) t.equal(hasMoreValues(text, most), more, `${text} more than ${most}`)

  // For any JSON, the count is never lower than the number of its values.
  const random = (depth: number): unknown => {
    const kind = Math.floor(Math.random() * (depth > 3 ? 3 : 5))
    if (kind === 0) return Math.random()
    if (kind === 1) return ['a,b', '"', '\\', '\\"', ',",', '']
    if (kind === 2) return 'x"\\,'.repeat(Math.floor(Math.random() * 3))
    const items = Array.from({ length: Math.floor(Math.random() * 5) }, () => random(depth + 1))
    return kind === 3 ? items : Object.fromEntries(items.map((item, index) => [`k"${index},\\`, item]))
  }
  const commas = (value: unknown): number => {
    if (typeof value !== 'object' || value === null) return 0
    const items = Object.values(value)
    return Math.max(0, items.length - 1) + items.reduce<number>((sum, item) => sum + commas(item), 0)
  }
  for (let round = 0; round < trialCount(200); round++) {
    const value = random(0)
    const text = JSON.stringify(value)
    const count = commas(value)
    if (count > 0) t.ok(hasMoreValues(text, count - 1), text)
    t.notOk(hasMoreValues(text, count), text)
  }
})

t.test('JsonScan counts levels, lists, objects and keys outside of strings', async t => {
  const cases: [string, { depth?: number; members?: number }, JsonExcess | undefined][] = readCases(
    'core-cases.yaml',
    'jsonLevels'
  )
  for (const [text, most, excess] of cases) {
    for (const slice of [1, 2, 3, 5, 100]) t.equal(scanned(text, most, slice), excess, `${text} by ${slice}`)
  }
})

t.test('faultSentence explains the first error of a value', async t => {
  const Item = Type.Object({ type: Type.Enum(['a', 'b']), size: Type.Optional(Type.Integer({ minimum: 1 })) })
  const schema = Type.Object(
    {
      items: Type.Array(Item),
      name: Type.Optional(Type.Union([Type.String({ minLength: 1 }), Type.Null()])),
      more: Type.Optional(Type.Record(Type.String(), Type.Number()))
    },
    { additionalProperties: false }
  )
  for (const [value, sentence] of readCases<[unknown, string][]>('core-cases.yaml', 'schemaFaults')) {
    const fault = findFault(schema, value)
    t.equal(fault && faultSentence(fault, 'The record'), sentence)
  }
  t.equal(findFault(schema, { items: [{ type: 'b', size: 2 }], name: null }), undefined)
  t.equal(allowedBy({ type: ['string', 'integer'], maximum: 5 }), 'text or a whole number, at most 5')
  t.equal(allowedBy({ type: 'string', pattern: '^[a-z]$' }), 'text that matches ^[a-z]$')
  t.equal(allowedBy({ type: 'string', pattern: '^[a-z]$', title: 'a small letter' }), 'a small letter')
  t.equal(allowedBy({ anyOf: [{ type: 'boolean' }, { const: 7 }] }), 'true or false or 7')
})
