/**
 * Measures the benefit of saved prompt caches: `npm run bench:prompt-cache -- [--rounds N] [--tokens N]`. Two servers,
 * one with `scheduler.prompt_cache` and one without, have the same conversations with two models. The models are
 * repeatedly unloaded and their conversations continued. Writes the results to docs/measurements/prompt-cache.md.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { formatTable } from '../command-line/output.ts'
import { packageRoot, version } from '../core/system/package-info.ts'
import { type Corral, startCorral } from '../test/support/corral.ts'
import { type Continued, createConversation } from './bench/conversation.ts'
import { ENGINE_THREADS } from './bench/corral-server.ts'
import { describeMachine, median, short } from './bench/measuring.ts'

import { SHAPE_200M, writeRandomModel } from './random-models.ts'

const CONTEXT = 8192
const RANDOM = 'bench/random-200m'
const DEMO = 'corral/tiny-chat'

const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '5' }, tokens: { type: 'string', default: '2000' } }
})
const rounds = Number(values.rounds)
const tokens = Number(values.tokens)
const endings: (() => unknown)[] = []
const machine = describeMachine()
const folder = mkdtempSync(join(tmpdir(), 'corral-bench-'))
try {
  const random = join(folder, 'random.gguf')
  const made = await writeRandomModel(random, SHAPE_200M)
  const start = async (budget: string): Promise<Corral> => {
    const corral = await startCorral(
      { teardown: (ending: () => unknown) => endings.unshift(ending) },
      { threads: ENGINE_THREADS, config: `scheduler:\n  prompt_cache: ${budget}\n` }
    )
    const { status, body } = await corral.json('/api/import', { model: RANDOM, path: random })
    if (status !== 200) throw new Error(`The random model could not be imported: ${JSON.stringify(body)}`)
    return corral
  }
  const saving = await start('4GiB')
  const plain = await start('0')
  const sections: string[] = []
  for (const model of [DEMO, RANDOM]) {
    const withCache = createConversation(saving, model, CONTEXT)
    const without = createConversation(plain, model, CONTEXT)
    const length = await withCache.grow(tokens)
    await without.grow(tokens)
    const saved: Continued[] = []
    const read: Continued[] = []
    for (let round = 0; round < rounds; round++) {
      process.stderr.write(`${model}, round ${round + 1} of ${rounds} …\n`)
      saved.push(await withCache.unloadAndGoOn())
      read.push(await without.unloadAndGoOn())
    }
    for (const corral of [saving, plain]) await corral.json('/api/stop', { model })
    sections.push(section(model, length, saved, read))
  }
  const engine = /llama\.cpp (\S+ \([^)]*\))/.exec(saving.log())?.[1] ?? 'unknown'
  const report = [
    `corral ${version}, ${new Date().toISOString()}`,
    `${machine} before, llama.cpp ${engine} with ${ENGINE_THREADS} threads`,
    `${DEMO}: F16, 2 million weights; ${RANDOM}: Q8_0, ${Math.round(made.parameters / 1e6)} million random weights; medians of ${rounds} rounds`,
    '',
    ...sections
  ].join('\n')
  console.log(report)
  writeFileSync(join(packageRoot, 'docs', 'measurements', 'prompt-cache.md'), document(report))
} finally {
  for (const ending of endings) await ending()
  rmSync(folder, { recursive: true, force: true })
}

function section(model: string, length: number, saved: Continued[], read: Continued[]): string {
  const of = (turns: Continued[], figure: keyof Omit<Continued, 'answer'>) => median(turns.map(turn => turn[figure]))
  const row = (name: string, turns: Continued[]) => [
    name,
    `${of(turns, 'promptTokens').toFixed(0)}`,
    `${short(of(turns, 'promptEvaluation'))} ms`,
    `${short(of(turns, 'firstWord'))} ms`,
    `${short(of(turns, 'load'))} ms`,
    `${short(of(turns, 'stop'))} ms`
  ]
  const table = formatTable(
    ['', '>prompt tokens', '>prompt evaluation', '>first word', '>load', '>stop'],
    [row('saved cache', saved), row('processed again', read)]
  )
  const ratios = saved.map((turn, i) => read[i]!.promptEvaluation / turn.promptEvaluation)
  const same = saved.filter((turn, i) => turn.answer === read[i]!.answer).length
  return [
    `${model}: continuing a conversation of ${length} tokens after an unload`,
    table,
    `Prompt processing is ${short(median(ratios))} times faster (at least ${short(Math.min(...ratios))} times). ${same} of ${saved.length} answers are the same.`,
    ''
  ].join('\n')
}

function document(report: string): string {
  return `# Saved prompt caches

The output of \`npm run bench:prompt-cache\`. Two servers run side by side, one with \`scheduler.prompt_cache\` and one without. Both have the same conversation. Then, alternating between them, the model is unloaded (\`POST /api/stop\`, which saves the cache) and the conversation continues with another question. "Prompt evaluation" is \`prompt_eval_duration\`, without the load. "First word" is the user's whole wait, including the load, which restores and verifies the saved cache.

\`\`\`
${report.trimEnd()}
\`\`\`
`
}
