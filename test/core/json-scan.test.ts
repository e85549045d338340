import t from 'tap'
import { type JsonExcess, JsonScan } from '../../core/system/json-scan.ts'
import { readCases } from '../support/fixture.ts'
import { trialCount } from '../support/trial-count.ts'

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
