import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Method } from '../../../../runtimes/llama-server/speculation/choose-method.ts'
import {
  type Chosen,
  createSpeculation,
  withMethod
} from '../../../../runtimes/llama-server/speculation/speculation.ts'
import { architectureKeys, writeRandomArchitecture } from '../../../../scripts/random-models.ts'
import { longText, promptCacheIn, say, startWith, takeTurns } from '../prompt-cache/support.ts'
import { engineSpec } from '../support.ts'

/* Real engines, with Qwen 3.5's architecture and random weights. Their heads never guess right. */

const TWO = [1, 2].map(seed => longText(200, seed))
/** The last answer and question, and the end of the template. */
const MAX_NEW = 60

async function specWithHeads(directory: string, method: Method) {
  const modelPath = join(directory, 'model.gguf')
  await writeRandomArchitecture(modelPath, 'qwen35')
  const info = Object.fromEntries(
    Object.entries(architectureKeys('qwen35')).filter(([, value]) => typeof value === 'number')
  ) as Record<string, number>
  const metadata = { architecture: 'qwen35', capabilities: ['completion' as const], info }
  const { variant } = engineSpec()
  const companion = join(directory, 'mtp-model.gguf')
  if (method === 'draft') await writeRandomArchitecture(companion, 'qwen35', 'heads')
  const speculation = {
    ngram: method === 'ngram',
    ...(method === 'mtp' && { mtp: true }),
    ...(method === 'draft' && { companion })
  }
  return {
    modelPath,
    variant: { ...variant, key: 'random/qwen35', metadata },
    settings: { arguments: [], environment: {}, speculation, loras: [] }
  }
}

t.test('answers are the same with every method, also after their states were restored', async t => {
  const options = { num_parallel: 2, num_ctx: 2048 }
  const alone = await startWith(t, undefined, options, await specWithHeads(t.testdir(), 'none'))
  const expected = await takeTurns(alone, TWO, 2)
  for (const method of ['mtp', 'draft', 'ngram'] as const) {
    const { cache, said: log } = promptCacheIn(join(t.testdirName, `states ${method}`))
    const spec = await specWithHeads(t.testdirName, method)
    const engine = await startWith(t, cache, { ...options, num_parallel: 1 }, spec)
    for (const [at, turns] of (await takeTurns(engine, TWO, 2)).entries()) {
      const messages = turns.map(({ message }) => message)
      t.same(
        messages,
        expected[at]!.map(({ message }) => message),
        method
      )
      const { prompt, cached } = turns[1]!
      t.ok(prompt - cached < MAX_NEW, `${method}: ${prompt - cached} of ${prompt} tokens were processed`)
    }
    t.notMatch(log.join('\n'), /not saved|useless/)
    await engine.stop()
  }
})

t.test('an engine is measured while it answers, and replaced once it is idle', async t => {
  const directory = t.testdir()
  const log = { info() {}, warn() {} }
  const times = { measureEvery: 50, idleFor: 200 }
  const speculation = createSpeculation({ directory, isEnabled: () => true, log, times })
  const engine = await startWith(t, undefined, { num_parallel: 1 })
  const chosen: Chosen = { model: 'a', key: 'a', methods: ['none', 'ngram'], method: 'none' }
  let outdated = 0
  speculation.follow(engine, chosen, () => outdated++)
  let asked = 0
  while (!outdated) {
    const { tokensPerSecond } = speculation.describe(chosen)!
    // Twice as many tokens as it takes, because the last ones may not be measured.
    if (asked++ < 16) await say(engine, [{ role: 'user', content: `Count ${asked}.` }], 'keyless', COUNT)
    else await sleep(100)
    t.ok(outdated === 0 || (tokensPerSecond.none ?? 0) > 0)
  }
  const method = speculation.choose({ ...engine.spec, ...LARGE }, engine.build).method
  t.equal(method, 'none', 'another model is not measured')
  await speculation.close()
  const later = createSpeculation({ directory, isEnabled: () => true, log })
  await later.loaded
  t.ok(later.describe(chosen)!.tokensPerSecond.none, 'the speed is known after a restart')
  t.same(withMethod({ ...engine.spec, ...LARGE }, { ...chosen, settings: { ngram: true } }).settings!.speculation, {
    ngram: true
  })
})

/** An answer that does not end early. */
const COUNT = { max_tokens: 200, ignore_eos: true }
const LARGE = { settings: { arguments: [], environment: {}, speculation: {}, loras: [] } }
