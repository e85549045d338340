/**
 * Runs llama.cpp's own tests of its server against llama-server and against corral, writes what differs to
 * docs/compatibility-llama-server.md, and fails where a test fails on corral alone that EXPLAINED does not know:
 * `npm run conformance:llama [-- unit/test_basic.py …]`. With names of tests, the document stays as it is.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { EXPLAINED } from './conformance/llama-differences.ts'
import { type Outcomes, runLlamaTests } from './conformance/llama-tests.ts'

const only = process.argv.slice(2)
const { release, engine, corral } = await runLlamaTests(only, text => console.log(text))

const alone = [...corral.values()].filter(
  ({ id, outcome }) => outcome === 'failed' && engine.get(id)?.outcome === 'passed'
)
const reasonOf = (id: string) => EXPLAINED.find(({ tests }) => tests.test(id))?.reason
for (const { id, message } of alone.filter(({ id }) => !reasonOf(id))) {
  console.log(`Fails on corral alone: ${id}\n    ${message.slice(0, 300).replaceAll('\n', '\n    ')}`)
  process.exitCode = 1
}
const count = (outcomes: Outcomes, wanted: string) =>
  [...outcomes.values()].filter(({ outcome }) => outcome === wanted).length
const cell = (text: string) => text.replaceAll('|', '\\|').replaceAll('\n', ' ')
const table = (head: string, rows: string[][]) =>
  [head, head.replaceAll(/[^|]+/g, '---'), ...rows.map(row => `| ${row.map(cell).join(' | ')} |`)].join('\n')

const totals = (
  [
    ['llama-server', engine],
    ['corral', corral]
  ] as const
).map(([name, outcomes]) => [name, ...['passed', 'failed', 'skipped'].map(wanted => `${count(outcomes, wanted)}`)])
const text = `# llama.cpp's own tests

\`npm run conformance:llama\` runs the tests of llama.cpp ${release} (tools/server/tests, without those marked slow) as
they are, against llama-server and against corral in one sitting, and writes this. No model of theirs is here: the demo
model and random weights stand in, so that tests of certain words or counts of tokens fail on both. What counts is what
fails on corral alone.

${table('| server | passed | failed | skipped |', totals)}

## Fails on corral alone: ${alone.length}

${table(
  '| test | why |',
  alone.map(({ id }) => [`\`${id}\``, reasonOf(id) ?? 'not explained yet'])
)}
`
if (only.length === 0) writeFileSync(join(packageRoot, 'docs', 'compatibility-llama-server.md'), text)
else console.log(text)
