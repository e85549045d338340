import { OLLAMA_VERSION } from '../../plugins/apis/ollama/routes.ts'
import { describeMachine } from '../bench/measuring.ts'
import { EXPLAINED, explanationOf, wholeTests } from './ollama-explained.ts'
import type { Outcomes } from './ollama-outcomes.ts'

/** What all tests and programs said of one server. */
export interface Sitting {
  /** Name of the server. */
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

/** The document about how corral does in Ollama's own tests. The first sitting is corral's. Pure. */
export function renderReport([corral, ollama]: readonly Sitting[]): string {
  const all = wholeTests(corral!.tests)
  const resultOf = (sitting: Sitting | undefined, test: string) => sitting?.tests.get(test)?.result ?? 'not run'
  const counts = [corral!, ...(ollama ? [ollama] : [])].map(({ name, tests, examples, seconds }) => [
    name,
    ...RESULTS.map(result => wholeTests(tests).filter(test => tests.get(test)!.result === result).length),
    `${[...examples.values()].filter(({ result }) => result === 'passed').length} of ${examples.size}`,
    `${seconds} s`
  ])
  const failed = all.filter(test => resultOf(corral, test) === 'failed')
  const explained = EXPLAINED.map(explanation => ({
    ...explanation,
    tests: failed.filter(test => explanationOf(test) === explanation)
  })).filter(({ tests }) => tests.length > 0)
  const rest = failed.filter(test => explanationOf(test) === undefined)
  const alone = ollama
    ? wholeTests(ollama.tests).filter(
        test => resultOf(ollama, test) === 'failed' && resultOf(corral, test) === 'passed'
      )
    : []
  const skipped = all.filter(test => resultOf(corral, test) === 'skipped')
  const programs = [...corral!.examples].map(([name, { result }]) => [
    `\`${name}\``,
    result,
    ollama?.examples.get(name)?.result ?? 'not run'
  ])
  const sections = [
    table(['server', 'passed', 'failed', 'skipped', 'example programs that work', 'it took'], counts),
    '## What fails on corral',
    ...explained.map(({ tests, why }) =>
      [
        why,
        '',
        table(
          ['test', 'what it says', 'on Ollama'],
          tests.map(test => [`\`${test}\``, short(corral!.tests.get(test)!.said), resultOf(ollama, test)])
        )
      ].join('\n')
    ),
    ...(rest.length > 0
      ? ['Not explained:', rest.map(test => `- \`${test}\`: ${short(corral!.tests.get(test)!.said)}`).join('\n')]
      : []),
    ...(alone.length > 0
      ? [
          '## What fails on Ollama alone',
          table(
            ['test', 'what it says'],
            alone.map(test => [`\`${test}\``, short(ollama!.tests.get(test)!.said)])
          )
        ]
      : []),
    '## What is skipped',
    'The tests themselves leave these out on corral: without a GPU, or where they are for Windows or for a server that the tests start.',
    table(
      ['test', 'what it says'],
      skipped.map(test => [`\`${test}\``, short(corral!.tests.get(test)!.said)])
    ),
    '## Programs',
    "Ollama's example programs for its Go client, and its benchmark (`cmd/bench`). They work where they end without an error and print something.",
    table(['program', 'corral', 'Ollama'], programs)
  ]
  return `# Ollama's own tests

The integration tests of Ollama ${OLLAMA_VERSION} (\`integration/\` of its Go module, build tags \`integration\` and \`models\`) and its example programs, unmodified, against corral's address for Ollama's clients${ollama ? ' and against Ollama itself' : ''}. Written by
\`npm run conformance:ollama\` on ${new Date().toISOString().slice(0, 10)}; machine: ${describeMachine()}.

Models of Ollama's library are not at hand where this runs, so both servers have models of the same names that were made
for it: they say all words that the tests look for, call the tool that they are offered, and have embeddings in which some
words mean the same. What is tested so is the server, not what models know. Parts of a test count for themselves. On
corral, models whose publisher it knows are pulled by the tests, from an emulated hub.

${sections.join('\n\n')}
`
}
