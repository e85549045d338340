import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_QUESTION, type Corral } from '../../../support/corral.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, quantizedModels } from './support.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const repository = (name: string) => ({
  files: { [`${name}-Q8_0.gguf`]: Q8_0, [`${name}-Q4_K_M.gguf`]: Q4_K_M }
})
const REPOSITORIES = {
  'Qwen/Qwen3-0.6B-GGUF': repository('Qwen3-0.6B'),
  'Qwen/Qwen2.5-Coder-7B-Instruct-GGUF': repository('qwen2.5-coder-7b-instruct')
}

const pull = async (corral: Corral, model: string) =>
  (await corral.json('/ollama/api/pull', { model, stream: false })).body
const names = async (corral: Corral, path: string): Promise<string[]> =>
  (await corral.json(path)).body.models.map(({ name, model }: any) => (name === model ? name : `${name} or ${model}`))
const hosted = async (corral: Corral): Promise<string[]> =>
  (await corral.json('/ollama/v1/models')).body.data.map(({ id }: any) => id)

t.test("a model pulled by a name of Ollama's library is found by that name", async t => {
  const hub = await startHubEmulator(t, { repositories: REPOSITORIES })
  let corral = await corralWithHub(t, hub)
  for (const model of ['qwen3:0.6b', 'qwen2.5-coder']) t.match(await pull(corral, model), { status: 'success' }, model)
  const TAGS = ['qwen2.5-coder:latest', 'qwen3:0.6b']
  t.same((await names(corral, '/ollama/api/tags')).sort(), TAGS, 'one row for each model')
  t.same((await names(corral, '/api/tags')).sort(), ['Qwen/Qwen2.5-Coder-7B-Instruct-GGUF', 'Qwen/Qwen3-0.6B-GGUF'])
  t.match((await corral.json('/api/tags')).body.models, [{ aliases: [TAGS[0]] }, { aliases: [TAGS[1]] }])
  t.same((await hosted(corral)).sort(), ['Qwen/Qwen2.5-Coder-7B-Instruct-GGUF', 'Qwen/Qwen3-0.6B-GGUF', ...TAGS])
  t.match(await corral.json('/ollama/v1/models/qwen3:0.6b'), { status: 200, body: { id: 'qwen3:0.6b' } })
  t.match(await corral.json('/ollama/api/show', { model: 'qwen3:0.6b' }), {
    status: 200,
    body: { modelfile: /qwen3:0\.6b/ }
  })
  const chat = { model: 'qwen3:0.6b', messages: [CAPITAL_QUESTION], stream: false, options: { num_predict: 2 } }
  t.match(await corral.json('/ollama/api/chat', chat), { status: 200, body: { model: 'qwen3:0.6b' } })
  t.same(await names(corral, '/ollama/api/ps'), ['qwen3:0.6b'])
  t.same(await names(corral, '/api/ps'), ['Qwen/Qwen3-0.6B-GGUF'])

  await corral.end()
  corral = await corralWithHub(t, hub, { home: corral.home })
  t.same((await names(corral, '/ollama/api/tags')).sort(), TAGS, 'after a restart too')
  t.match(await pull(corral, 'qwen3:0.6b'), { status: 'success' }, 'a pull of an installed model')

  const remove = (model: string) => corral.json('/ollama/api/delete', { model }, { method: 'DELETE' })
  t.equal((await remove('qwen2.5-coder:7b')).status, 404, 'by no name that was not pulled')
  t.equal((await remove('qwen2.5-coder')).status, 200)
  t.equal((await remove('qwen2.5-coder')).status, 404)
  t.same(await names(corral, '/ollama/api/tags'), ['qwen3:0.6b'])
})

t.test('each variant has only the name that it was pulled by', async t => {
  const hub = await startHubEmulator(t, { repositories: REPOSITORIES })
  const corral = await corralWithHub(t, hub)
  t.match(await pull(corral, 'Qwen/Qwen3-0.6B-GGUF:Q8_0'), { status: 'success' })
  t.same(await names(corral, '/ollama/api/tags'), ['Qwen/Qwen3-0.6B-GGUF:latest'], 'pulled only by its own name')
  t.match(await pull(corral, 'qwen3:0.6b-q4_K_M'), { status: 'success' })
  t.same((await names(corral, '/ollama/api/tags')).sort(), ['Qwen/Qwen3-0.6B-GGUF:latest', 'qwen3:0.6b-q4_K_M'])
  t.match((await corral.json('/ollama/api/show', { model: 'QWEN3:0.6b-Q4_k_m' })).body, {
    modelfile: /qwen3:0\.6b-q4_K_M/,
    details: { quantization_level: 'Q4_K_M' }
  })
  // The short name means its default variant unless another one was pulled by that name.
  t.match((await corral.json('/ollama/api/show', { model: 'qwen3:0.6b' })).body.details, { quantization_level: 'Q8_0' })
  t.equal((await corral.json('/ollama/api/delete', { model: 'qwen3:0.6b-q4_K_M' }, { method: 'DELETE' })).status, 200)
  t.same(await names(corral, '/ollama/api/tags'), ['Qwen/Qwen3-0.6B-GGUF:latest'])
  t.same(await names(corral, '/api/tags'), ['Qwen/Qwen3-0.6B-GGUF'])

  t.match(await pull(corral, 'qwen3:0.6b'), { status: 'success' }, 'the name of the installed model')
  t.same(await names(corral, '/ollama/api/tags'), ['qwen3:0.6b'])
  t.equal((await corral.json('/ollama/api/copy', { source: 'corral/none', destination: 'x' })).status, 404)
})

t.test('an unusable file of names costs only the names', async t => {
  const hub = await startHubEmulator(t, { repositories: REPOSITORIES })
  let corral = await corralWithHub(t, hub)
  await pull(corral, 'qwen3:0.6b')
  for (const text of ['{', JSON.stringify({ version: 1, names: { '..': 'a/b:c', 'qwen3:0.6b': 'x' } })]) {
    await corral.end()
    writeFileSync(join(corral.home, 'pulled-names.json'), text)
    corral = await corralWithHub(t, hub, { home: corral.home })
    t.same(await names(corral, '/ollama/api/tags'), ['Qwen/Qwen3-0.6B-GGUF:latest'])
    t.match(corral.log(), /pulled-names\.json/)
  }
  await pull(corral, 'qwen3:0.6b')
  t.same(await names(corral, '/ollama/api/tags'), ['qwen3:0.6b'])
})
