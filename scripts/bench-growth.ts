/**
 * Measures what a request costs with 10, 1,000 and 10,000 models, keys, waiting requests and members:
 * `npm run bench:growth -- [--json FILE]`. docs/benchmark-growth.md has what it printed.
 */
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { formatTable } from '../command-line/output.ts'
import { OPERATIONS, timeOf } from './bench/growth.ts'
import { describeMachine, short } from './bench/measuring.ts'

const COUNTS = [10, 1000, 10_000]

const { values } = parseArgs({ options: { json: { type: 'string' } } })
const rows = []
for (const operation of OPERATIONS) {
  process.stderr.write(`${operation.name} …\n`)
  const times: number[] = []
  for (const count of COUNTS) {
    times.push(await timeOf(operation, count, 50, 5))
  }
  rows.push({ name: operation.name, of: operation.of, times })
}
console.log(
  `${new Date().toISOString()}, ${describeMachine()}. Microseconds of processor time, the least of 5 rounds.\n`
)
console.log(
  formatTable(
    ['', 'with so many', ...COUNTS.map(count => `>${count}`), '>growth'],
    rows.map(({ name, of, times }) => [
      name,
      of,
      ...COUNTS.map((_, at) => short(times[at] ?? Number.NaN)),
      short(times.at(-1)! / times[0]!)
    ])
  )
)
if (values.json) writeFileSync(values.json, `${JSON.stringify({ counts: COUNTS, microseconds: rows }, undefined, 2)}\n`)
