import { join } from 'node:path'
import t from 'tap'
import { writeRandomModel } from '../../../../scripts/random-models.ts'
import { startCorral } from '../../../support/corral.ts'
import { fetch } from '../../../support/quick-fetch.ts'
import { startBare } from './bare-server.ts'

const MODEL = 'team/filler'
const file = join(t.testdir(), 'filler.gguf')
await writeRandomModel(
  file,
  { layers: 1, embedding: 64, feedForward: 64, heads: 1, kvHeads: 1 },
  {
    // Arbitrary words serve as the fill-in tokens.
    metadata: Object.fromEntries(
      ['pre', 'suf', 'mid', 'rep', 'sep'].map((mark, at) => [`tokenizer.ggml.fim_${mark}_token_id`, 300 + at])
    )
  }
)
const [corral, bare] = await Promise.all([startCorral(t), startBare(t, file)])
t.equal((await corral.json('/api/import', { model: MODEL, path: file, stream: false }, { local: true })).status, 200)

const TEXTS = { input_prefix: 'The capital of ', prompt: 'France', input_suffix: ' is Paris.' }
const GREEDY = { temperature: 0, n_predict: 8 }

t.test('infill matches llama-server, also with extra files', async t => {
  t.match((await corral.json('/api/show', { model: MODEL })).body, { capabilities: ['completion', 'tools', 'insert'] })
  const answers = new Set<string>()
  for (const more of [
    {},
    { input_suffix: '' },
    { input_extra: [{ filename: 'a.txt', text: 'Paris is a city.' }] },
    { input_extra: [{ filename: 'b.txt', text: 'Rome is a city.' }] }
  ]) {
    const body = { ...TEXTS, ...GREEDY, ...more }
    const own = (await corral.json('/infill', { model: MODEL, ...body })).body
    const wanted: any = await (await fetch(`${bare}/infill`, { method: 'POST', body: JSON.stringify(body) })).json()
    t.strictSame(
      [own.content, own.tokens_predicted, own.tokens_evaluated, own.stop_type],
      [wanted.content, wanted.tokens_predicted, wanted.tokens_evaluated, wanted.stop_type]
    )
    t.match(own, { model: MODEL, stop: true, tokens_predicted: 8 })
    answers.add(own.content)
  }
  t.ok(answers.size > 1, 'the answer depends on the surrounding text')
})

t.test('infill streams its answer', async t => {
  const whole = (await corral.json('/infill', { model: MODEL, ...TEXTS, ...GREEDY })).body
  const events = await corral.events('/infill', { model: MODEL, ...TEXTS, ...GREEDY, stream: true })
  t.equal(events.map(({ content }) => content).join(''), whole.content)
  t.match(events.at(-1), { stop: true, stop_type: 'limit', tokens_predicted: 8 })
})
