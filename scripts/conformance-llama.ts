/**
 * Runs llama.cpp's own server tests against llama-server and corral, and writes the differences to
 * docs/measurements/compatibility-llama-server.md: `npm run conformance:llama [-- unit/test_basic.py …]`. Fails if a test fails only
 * on corral and EXPLAINED has no reason for it. If tests are named, only these are run, and the others keep their
 * documented results.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { failuresOfCorral, reasonFor } from './conformance/llama-differences.ts'
import { keepOutcomes, type Outcomes, runLlamaTests } from './conformance/llama-tests.ts'

const only = process.argv.slice(2)
const { release, engine, corral } = keepOutcomes(await runLlamaTests(only, text => console.log(text)))

const alone = failuresOfCorral({ engine, corral })
for (const { id, message } of alone.filter(({ id }) => !reasonFor(id))) {
  console.log(`Fails only on corral: ${id}\n    ${message.slice(0, 300).replaceAll('\n', '\n    ')}`)
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
const both = [...corral.values()].filter(
  ({ id, outcome }) => outcome === 'failed' && engine.get(id)?.outcome === 'failed'
)

const testName = (id: string) => id.replace(/^unit\//, '').replace(/\[.*$/s, '')
/** Tests by reason for the failure. Tests that differ only in parameters share a name. */
const reasons = new Map<string, string[]>()
for (const { id } of alone) {
  const reason = reasonFor(id) ?? 'Not explained yet.'
  reasons.set(reason, [...(reasons.get(reason) ?? []), testName(id)])
}
const rows = [...reasons].map(([reason, names]) => [
  reason,
  `${names.length}`,
  [...new Set(names)].map(name => `\`${name}\``).join(', ')
])

const text = `# llama.cpp's own tests

\`npm run conformance:llama\` runs the tests of llama.cpp ${release} (tools/server/tests, without those marked slow) as
they are, against llama-server and corral side by side, and writes this page. The demo model and random weights replace
the tests' models, so tests that expect certain words or token counts fail on both. Relevant are the tests that fail on
corral alone.

${table('| server | passed | failed | skipped |', totals)}

${both.length} tests fail on both.

## Fails on corral alone: ${alone.length}

${table('| reason | tests | names |', rows)}
`
writeFileSync(join(packageRoot, 'docs', 'measurements', 'compatibility-llama-server.md'), text)
console.log(text)
