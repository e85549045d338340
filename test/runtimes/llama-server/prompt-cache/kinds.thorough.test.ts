import { join } from 'node:path'
import t, { type Test } from 'tap'
import { architectureKeys, type SmallArchitecture, writeRandomArchitecture } from '../../../../scripts/random-models.ts'
import { thorough } from '../../../support/thorough.ts'
import { engineSpec } from '../support.ts'
import { longText, type Message, promptCacheIn, say, startWith, takeTurns } from './support.ts'

/** Several windows of 64 tokens. */
const TWO = [1, 2].map(seed => longText(300, seed))
/** The last answer and question, and the end of the template. */
const MAX_NEW = 60

/** The spec of a model with random weights. */
async function specOf(t: Test, architecture: SmallArchitecture, capability: 'completion' | 'thinking' = 'completion') {
  const modelPath = join(t.testdir(), 'model.gguf')
  await writeRandomArchitecture(modelPath, architecture)
  const { variant } = engineSpec()
  // As in the store's records, which have no lists.
  const info = Object.fromEntries(
    Object.entries(architectureKeys(architecture)).filter(([, value]) => typeof value === 'number')
  ) as Record<string, number>
  const metadata = { architecture, capabilities: ['completion' as const, capability], info }
  return { modelPath, variant: { ...variant, key: `random/${architecture}`, metadata } }
}

for (const [architecture, capability] of [
  ['gemma3', 'completion'],
  ['gemma3', 'thinking'],
  ['lfm2', 'completion'],
  ['lfm2', 'thinking']
] as const) {
  const options = capability === 'thinking' ? thorough : {}
  t.test(
    `${architecture}, ${capability}: conversations on one slot continue from their last prompt`,
    options,
    async t => {
      const spec = await specOf(t, architecture, capability)
      const alone = await startWith(t, undefined, { num_parallel: 2, num_ctx: 2048 }, spec)
      const expected = await takeTurns(alone, TWO, 3)
      const { cache, said: log } = promptCacheIn(join(t.testdirName, 'states'))
      const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 }, spec)
      const said = await takeTurns(engine, TWO, 3)
      for (const [at, turns] of said.entries()) {
        for (const [turn, { prompt, cached, message }] of turns.entries()) {
          const what = `conversation ${at}, turn ${turn}`
          t.same(message, expected[at]![turn]!.message, `${what}: the answer of an undisturbed engine`)
          if (turn > 0)
            t.ok(prompt - cached < MAX_NEW, `${what}: ${prompt - cached} of ${prompt} tokens were processed`)
        }
      }
      t.notMatch(log.join('\n'), /not saved|useless/)
      await engine.stop()
    }
  )
}

for (const architecture of ['gemma3', 'lfm2', 'qwen35'] as const) {
  t.test(`${architecture}: a conversation continues with more slots, then with fewer`, thorough, async t => {
    const spec = await specOf(t, architecture)
    const options = { num_ctx: 2048 }
    const expected = await startWith(t, undefined, { ...options, num_parallel: 1 }, spec)
    const { cache, said: log } = promptCacheIn(join(t.testdirName, 'states'))
    const history: Message[] = [{ role: 'user', content: TWO[0]! }]
    for (const num_parallel of [1, 3, 2]) {
      const engine = await startWith(t, cache, { ...options, num_parallel }, spec)
      const { prompt, cached, message } = await say(engine, history)
      t.same(message, (await say(expected, history)).message, `${num_parallel} slots: the right answer`)
      if (history.length > 1) t.ok(prompt - cached < MAX_NEW, `${prompt - cached} of ${prompt} tokens were processed`)
      await engine.promptSlots.saveAll()
      await engine.stop()
      history.push(message, { role: 'user', content: 'And then?' })
    }
    t.notMatch(log.join('\n'), /not saved|useless/)
  })
}

for (const architecture of ['gemma3', 'lfm2'] as const) {
  const options = architecture === 'gemma3' ? {} : thorough
  t.test(`${architecture}: a summary between two turns costs no turn`, options, async t => {
    const spec = await specOf(t, architecture)
    const { cache } = promptCacheIn(join(t.testdirName, 'states'))
    const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 }, spec)
    const history: Message[] = [{ role: 'user', content: TWO[0]! }]
    history.push((await say(engine, history)).message)
    const before = await say(engine, [...history, { role: 'user', content: 'Summarize this.' }])
    t.ok(before.prompt - before.cached < MAX_NEW)
    const next = await say(engine, [...history, { role: 'user', content: 'And then?' }])
    t.ok(next.prompt - next.cached < MAX_NEW, `${next.prompt - next.cached} of ${next.prompt} tokens were processed`)
    await engine.stop()
  })

  t.test(`${architecture}: a state is not continued from its middle`, options, async t => {
    const spec = await specOf(t, architecture)
    const { cache } = promptCacheIn(join(t.testdirName, 'states'))
    const engine = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 }, spec)
    const [first, second] = TWO as [string, string]
    await say(engine, [{ role: 'user', content: first }])
    await say(engine, [{ role: 'user', content: second }])
    await engine.promptSlots.saveAll()
    await engine.stop()
    // They differ near the end, where the checksums of the trail do not tell them apart.
    const changed: Message[] = [{ role: 'user', content: `${first.slice(0, -4)}frog` }]
    const fresh = await startWith(t, undefined, { num_parallel: 1, num_ctx: 2048 }, spec)
    const expected = await say(fresh, changed)
    const next = await startWith(t, cache, { num_parallel: 1, num_ctx: 2048 }, spec)
    const reply = await say(next, changed)
    t.same(reply.message, expected.message, 'the answer is right')
    t.equal(reply.cached, 0, 'because the whole prompt is processed')
  })
}
