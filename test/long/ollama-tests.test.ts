import t from 'tap'
import { EXPLAINED, findExplanation, isShort, wholeTests } from '../../scripts/conformance/ollama-explained.ts'
import { modelNames } from '../../scripts/conformance/ollama-models.ts'
import { readOutcomes, runExamples, runTests } from '../../scripts/conformance/ollama-outcomes.ts'
import { clientPrograms } from '../../scripts/conformance/ollama-programs.ts'
import { corralWithModels } from '../../scripts/conformance/ollama-servers.ts'
import { newFolder } from '../support/folder.ts'

// Ollama's own integration tests and example programs, unmodified, against a live corral with the real engine.

t.setTimeout(1_500_000)

t.test('outcomes of tests are parsed', t => {
  const outcomes = readOutcomes(
    [
      '=== RUN   TestA',
      '=== RUN   TestA/one',
      '    a_test.go:1: no words',
      '=== RUN   TestA/two',
      '--- FAIL: TestA (0.10s)',
      '    --- FAIL: TestA/one (0.05s)',
      '    --- PASS: TestA/two (0.05s)',
      '=== RUN   TestB',
      'panic: nil pointer'
    ].join('\n')
  )
  t.strictSame(wholeTests(outcomes), ['TestA/one', 'TestA/two', 'TestB'])
  t.strictSame(outcomes.get('TestA/one'), { result: 'failed', said: 'no words' })
  t.match(outcomes.get('TestA/two'), { result: 'passed' })
  t.match(outcomes.get('TestB'), { result: 'failed', said: /^panic/ })
  t.end()
})

const programs = clientPrograms()
const skip = 'missing' in programs ? `OLLAMA'S OWN TESTS ARE NOT RUN HERE: ${programs.missing}.` : false
t.test("Ollama's own tests pass", { skip }, async t => {
  if ('missing' in programs) return
  const url = await corralWithModels(t, modelNames(programs.module))
  const outcomes = await runTests(programs, url, isShort, line => t.comment(line))
  const failed = wholeTests(outcomes).filter(test => outcomes.get(test)!.result === 'failed')
  for (const test of failed) t.ok(findExplanation(test), `${test}: ${outcomes.get(test)!.said}`)
  for (const explanation of EXPLAINED) {
    t.ok(
      failed.some(test => findExplanation(test) === explanation),
      `still fails: ${explanation.tests.join(', ')}`
    )
  }
  t.ok(wholeTests(outcomes).length - failed.length > 150, 'most pass')

  const folder = newFolder(t)
  for (const [name, { result, said }] of await runExamples(programs, url, folder)) {
    t.equal(result, 'passed', `the program ${name}: ${said}`)
  }
})
