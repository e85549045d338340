import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import t from 'tap'
import { failuresOfCorral, reasonFor } from '../../scripts/conformance/llama-differences.ts'
import { PYTHON, runLlamaTests } from '../../scripts/conformance/llama-tests.ts'

// llama.cpp's own server tests, unmodified, against llama-server and a live corral, both with the real engine.

t.setTimeout(3_500_000)

const missing = [
  ...(existsSync(PYTHON) ? [] : ['its Python environment (npm run setup:python -- --only llama-server)']),
  ...(spawnSync('npm', ['--version'], { stdio: 'ignore' }).status === 0
    ? []
    : ["npm, which fetches llama.cpp's source"])
]
const skip =
  missing.length > 0 && `LLAMA.CPP'S OWN TESTS OF ITS SERVER ARE NOT RUN HERE: ${missing.join(' and ')} is missing.`

t.test('failures are attributed to corral or to llama-server', t => {
  const outcomes = (...failed: string[]) =>
    new Map(
      ['a', 'b', 'c'].map(id => [
        id,
        { id, outcome: failed.includes(id) ? ('failed' as const) : ('passed' as const), message: '', seconds: 0 }
      ])
    )
  const alone = failuresOfCorral({ engine: outcomes('a'), corral: outcomes('a', 'b') })
  t.strictSame(
    alone.map(({ id }) => id),
    ['b'],
    'tests that also fail on llama-server are not counted'
  )
  t.match(reasonFor('unit/test_sleep.py::test_server_sleep'), /keep_alive/)
  t.equal(reasonFor('unit/test_completion.py::test_completion'), undefined)
  t.end()
})

t.test("llama.cpp's own tests pass", { skip }, async t => {
  const sitting = await runLlamaTests([], text => t.comment(text))
  t.ok(sitting.engine.size > 300 && sitting.corral.size === sitting.engine.size, 'both ran all tests')
  const passed = [...sitting.corral.values()].filter(({ outcome }) => outcome === 'passed')
  t.ok(passed.length > 150, 'most pass')
  for (const { id, message } of failuresOfCorral(sitting)) t.ok(reasonFor(id), `${id}: ${message}`)
})
