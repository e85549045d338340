import { OLLAMA_VERSION } from '../../plugins/apis/ollama/routes.ts'
import { describeMachine } from '../bench/measuring.ts'
import { EXPLAINED, findExplanation, wholeTests } from './ollama-explained.ts'
import type { Outcomes } from './ollama-outcomes.ts'

/** Results of all tests and programs on one server. */
export interface Sitting {
  name: string
  tests: Outcomes
  examples: Outcomes
  seconds: number
}

const RESULTS = ['passed', 'failed', 'skipped'] as const
const row = (...cells: (string | number)[]) => `| ${cells.join(' | ')} |`
const table = (head: string[], rows: (string | number)[][]) =>
  [row(...head), row(...head.map(() => '---')), ...rows.map(cells => row(...cells))].join('\n')
const short = (text: string) => text.replaceAll('|', '\\|').replace(/\s+/g, ' ').slice(0, 160)

/** Generates the document about Ollama's tests. The first sitting is corral's. */
export function renderReport([corral, ollama]: readonly Sitting[]): string {
  const all = wholeTests(corral!.tests)
  const getResult = (sitting: Sitting | undefined, test: string) => sitting?.tests.get(test)?.result ?? 'not run'
  const counts = [corral!, ...(ollama ? [ollama] : [])].map(({ name, tests, examples, seconds }) => [
    name,
    ...RESULTS.map(result => wholeTests(tests).filter(test => tests.get(test)!.result === result).length),
    `${[...examples.values()].filter(({ result }) => result === 'passed').length} of ${examples.size}`,
    `${seconds} s`
  ])
  const failed = all.filter(test => getResult(corral, test) === 'failed')
  const explained = EXPLAINED.map(explanation => ({
    ...explanation,
    tests: failed.filter(test => findExplanation(test) === explanation)
  })).filter(({ tests }) => tests.length > 0)
  const rest = failed.filter(test => findExplanation(test) === undefined)
  const alone = ollama
    ? wholeTests(ollama.tests).filter(
        test => getResult(ollama, test) === 'failed' && getResult(corral, test) === 'passed'
      )
    : []
  const skipped = all.filter(test => getResult(corral, test) === 'skipped')
  const programs = [...corral!.examples].map(([name, { result }]) => [
    `\`${name}\``,
    result,
    ollama?.examples.get(name)?.result ?? 'not run'
  ])
  const sections = [
    table(['server', 'passed', 'failed', 'skipped', 'working example programs', 'duration'], counts),
    '## Failures on corral',
    ...explained.map(({ tests, why }) =>
      [
        why,
        '',
        table(
          ['test', 'message', 'on Ollama'],
          tests.map(test => [`\`${test}\``, short(corral!.tests.get(test)!.said), getResult(ollama, test)])
        )
      ].join('\n')
    ),
    ...(rest.length > 0
      ? ['Not explained:', rest.map(test => `- \`${test}\`: ${short(corral!.tests.get(test)!.said)}`).join('\n')]
      : []),
    ...(alone.length > 0
      ? [
          '## Failures on Ollama alone',
          table(
            ['test', 'message'],
            alone.map(test => [`\`${test}\``, short(ollama!.tests.get(test)!.said)])
          )
        ]
      : []),
    '## Skipped tests',
    'These tests skip themselves on corral, because there is no GPU, or because they are for Windows or for a server that the tests start.',
    table(
      ['test', 'message'],
      skipped.map(test => [`\`${test}\``, short(corral!.tests.get(test)!.said)])
    ),
    '## Programs',
    "Ollama's example programs for its Go client, and its benchmark (`cmd/bench`). A program works if it ends without an error and prints something.",
    table(['program', 'corral', 'Ollama'], programs)
  ]
  return `# Ollama's own tests

The integration tests of Ollama ${OLLAMA_VERSION} (\`integration/\` of its Go module, build tags \`integration\` and \`models\`) and its example programs, unmodified, against corral's address for Ollama's clients${ollama ? ' and against Ollama itself' : ''}. Written by
\`npm run conformance:ollama\` on ${new Date().toISOString().slice(0, 10)}; machine: ${describeMachine()}.

Ollama's library is not available to these tests, so both servers have special models of the same names. They contain all
words that the tests look for, call the offered tool, and have embeddings in which some words are similar. This tests the
server, not the models. Subtests count separately. On corral, the tests pull models of known publishers from an emulated
hub.

${sections.join('\n\n')}
`
}
