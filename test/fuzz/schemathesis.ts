import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { execa } from 'execa'
import type { Test } from 'tap'
import { ERROR_STATUS } from '../../core/errors.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { PYTHON_VARIABLES, pythonIn } from '../clients/python-scripts.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'

const HOOKS = join(packageRoot, 'test', 'fuzz', 'schemathesis_hooks.py')

/** Errors that a request may cause: 501 and above with a code. A 500 is always a fault. */
const explained: Record<string, string[]> = {}
for (const [code, status] of Object.entries(ERROR_STATUS)) {
  if (status > 500) explained[status] = [...(explained[status] ?? []), code]
}

/** Checks of every reply. */
const CHECKS = [
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'failures_are_explained'
]

/** Installing builds and packages is long work that a request may really start, and feeds never end. */
const LEFT_OUT = '/api/(runtimes/(install|upgrade|use)|conversion/install)$|/(events|sse)$'

export interface FuzzFigures {
  operations: number
  cases: number
  failures: number
}

/**
 * Has schemathesis send requests based on the served API document, and checks the replies. The corral under test gives
 * short answers and contacts no hub.
 * @param options `examples` is the maximum number of random requests for each operation, besides the requests
 * that cover its schema
 */
export async function fuzz(t: Test, options: { examples: number; seed?: number }): Promise<FuzzFigures> {
  const directory = t.testdir()
  const corral = await startCorral(t, {
    env: { HF_HUB_OFFLINE: '1' },
    config: 'defaults: { max_tokens: 8, num_ctx: 1024, num_parallel: 2 }'
  })
  const report = join(directory, 'report.json')
  const python = pythonIn('schemathesis')
  const { all, exitCode } = await execa(
    python,
    [
      ...['-m', 'schemathesis.cli', 'run', `${corral.url}/openapi.json`],
      ...[
        '--checks',
        CHECKS.join(','),
        '--phases',
        'examples,coverage,fuzzing',
        '--no-shrink',
        '--continue-on-failure'
      ],
      ...['--max-examples', `${options.examples}`, '--exclude-path-regex', LEFT_OUT, '--warnings', 'off'],
      ...(options.seed === undefined ? [] : ['--seed', `${options.seed}`]),
      // Some names are hard to generate from a pattern. This does not mean that the routes have faults.
      ...['--suppress-health-check', 'all'],
      // A request that takes longer than this hangs.
      ...['--request-timeout', '120', '--report', 'json', '--report-json-path', report]
    ],
    {
      cwd: directory,
      env: {
        ...PYTHON_VARIABLES,
        NO_COLOR: '1',
        TERM: 'dumb',
        SCHEMATHESIS_HOOKS: HOOKS,
        FUZZ_MODEL: DEMO,
        FUZZ_EXPLAINED: JSON.stringify(explained)
      },
      all: true,
      reject: false
    }
  )
  const { operations, test_cases: cases, errors } = JSON.parse(readFileSync(report, 'utf8'))
  t.equal(exitCode, 0, `what schemathesis found:\n${all}`)
  t.same(errors, [])
  t.equal(operations.tested, operations.selected)

  const { status, body } = await corral.json('/api/chat', {
    model: DEMO,
    messages: [CAPITAL_QUESTION],
    options: { temperature: 0, max_tokens: 40 },
    stream: false
  })
  const actual = { status, answer: body.message?.content }
  t.match(actual, { status: 200, answer: CAPITAL_ANSWER }, 'it still works afterwards')
  t.match((await corral.json('/api/ps')).body.models[0], { running: 0, queued: 0 })
  t.notMatch(corral.log(), /"level":(50|60)/, 'the log has no errors')
  return { operations: operations.tested, cases: cases.generated, failures: cases.with_failures }
}
