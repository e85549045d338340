import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ollama } from 'ollama'
import t from 'tap'
import { randomEncoder, writeRandomDecoderEmbedding } from '../../../../scripts/random-models.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, until } from '../../../support/corral.ts'
import { failure } from '../../../support/failure.ts'
import { writeGguf } from '../../../support/gguf-writer.ts'
import { thorough } from '../../../support/thorough.ts'
import { corralWithListener, get, post, WEATHER } from './support.ts'

// Runs Ollama's own JavaScript client against both addresses of the API. test/clients has the usual requests.
const { corral, address } = await corralWithListener(t)
const profile = `${corral.url}/ollama`
const client = new Ollama({ host: address })
const unloaded = () => until('the model is unloaded', async () => (await client.ps()).models.length === 0)
async function unload(): Promise<void> {
  await client.generate({ model: 'tiny-chat', prompt: '', keep_alive: 0 })
  await unloaded()
}
const length = (vector: readonly number[]) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))

t.test('errors begin with the words of Ollama', async t => {
  const unknown = { status_code: 404, error: /^model 'nix' not found/ }
  t.match(await failure(client.chat({ model: 'nix', messages: [] })), unknown)
  t.match(await failure(client.show({ model: 'nobody/nix' })), { error: /^model 'nobody\/nix' not found/ })
})

t.test('a truncated tool call is dropped', async t => {
  const messages = [{ role: 'user', content: 'What is the weather in Paris?' }]
  for (const num_predict of [10, 12, 14]) {
    const body = { model: 'tiny-chat', messages, tools: [WEATHER], options: { num_predict }, stream: false }
    const { lines } = await post(`${address}/api/chat`, body)
    t.match(lines, [{ done_reason: 'length', message: { content: '' } }])
    t.notOk('tool_calls' in lines[0].message, 'incomplete calls are useless')
  }
})

t.test('the official client streams log probabilities, and refuses what it cannot do', async t => {
  const asked = { model: 'tiny-chat', messages: [CAPITAL_QUESTION], logprobs: true, top_logprobs: 3, stream: false }
  const [{ logprobs }] = (await post(`${address}/api/chat`, asked)).lines
  const streamed = await post(`${address}/api/chat`, { ...asked, stream: true })
  t.same(
    streamed.lines.flatMap(line => line.logprobs ?? []).map(entry => entry.token),
    logprobs.map((entry: any) => entry.token)
  )

  const refused = async (path: string, more: object) =>
    await post(`${profile}/api${path}`, { model: 'tiny-chat', prompt: 'Hi', ...more })
  t.match(await refused('/generate', { images: ['iVBORw0KGgo='] }), {
    status: 400,
    lines: [{ code: 'unsupported_capability' }]
  })
  t.match(await refused('/generate', { template: '{{ .Prompt }}' }), {
    status: 400,
    lines: [{ error: /its own template/, code: 'invalid_request' }]
  })
  t.match(await refused('/generate', { template: '', context: [1, 2], suffix: '', system: '', stream: false }), {
    status: 200,
    lines: [{ done: true }]
  })
  t.match(await refused('/push', {}), { status: 501, lines: [{ code: 'not_implemented' }] })
  t.match(await refused('/me', {}), { status: 501, lines: [{ code: 'not_implemented' }] })
  t.match(await get(`${address}/api/status`), { lines: [{ cloud: { disabled: true } }] })
  const options = {
    num_predict: 4,
    num_thread: 2,
    num_batch: 64,
    num_keep: 4,
    repeat_last_n: 64,
    repeat_penalty: 1.1,
    use_mmap: true,
    main_gpu: 0,
    num_gpu: -1,
    typical_p: 1,
    mirostat: 0,
    penalize_newline: false
  }
  t.match(await refused('/generate', { options, stream: false }), {
    status: 200,
    lines: [{ done_reason: 'length', eval_count: 4 }]
  })
})

t.test('a conversation that is too long is truncated or refused', async t => {
  const old = Array.from({ length: 40 }, (_, index) => [
    { role: 'user', content: `Question ${index}: what is the capital of France, once more, please?` },
    { role: 'assistant', content: CAPITAL_ANSWER }
  ]).flat()
  const messages = [...old, CAPITAL_QUESTION]
  const options = { num_ctx: 256, num_predict: 20 }
  // An engine with a larger context would satisfy the request.
  await unload()
  const send = async (more: object) =>
    await post(`${address}/api/chat`, { model: 'tiny-chat', messages, options, ...more })
  const refusal = { status: 400, lines: [{ code: 'context_exceeded', n_ctx: 256 }] }
  t.match(await send({ stream: false, truncate: false }), refusal)
  for (const more of [{}, { truncate: true }]) {
    t.match(await send({ stream: false, ...more }), { status: 200, lines: [{ message: { content: CAPITAL_ANSWER } }] })
  }
})

t.test('the official client loads and unloads', async t => {
  await unload()
  const load = await post(`${address}/api/generate`, { model: 'tiny-chat', keep_alive: -1 })
  t.match(load.lines, [{ done: true, done_reason: 'load', response: '' }])
  t.equal(load.lines.length, 1)
  t.match((await client.ps()).models, [{ expires_at: /^2999/ }])
  const ended = await post(
    `${address}/api/chat`,
    { model: 'tiny-chat', messages: [], keep_alive: 0 },
    { accept: '*/*' }
  )
  t.match(ended, { type: /^application\/json/, lines: [{ done_reason: 'unload', message: { role: 'assistant' } }] })
  await unloaded()
})

t.test('the official client creates embeddings', async t => {
  const { embeddings, ...counts } = await client.embed({ model: 'tiny-chat', input: ['Paris', 'London'] })
  t.equal(embeddings.length, 2)
  for (const embedding of embeddings) t.ok(Math.abs(length(embedding) - 1) < 1e-6 && embedding.length === 256)
  t.match(counts, { model: 'tiny-chat', total_duration: Number, load_duration: Number, prompt_eval_count: Number })
  const single = await client.embed({ model: `${DEMO}:latest`, input: 'Paris', dimensions: 16, keep_alive: '5m' })
  t.equal(single.embeddings.length, 1)
  t.equal(single.embeddings[0]!.length, 16)
  t.ok(Math.abs(length(single.embeddings[0]!) - 1) < 1e-6)
  const scale = length(embeddings[0]!.slice(0, 16))
  t.ok(single.embeddings[0]!.every((value, index) => Math.abs(value - embeddings[0]![index]! / scale) < 1e-3))
  const older = await client.embeddings({ model: 'tiny-chat', prompt: 'Paris' })
  t.ok(older.embedding.every((value, index) => Math.abs(value - embeddings[0]![index]!) < 1e-3))
  t.same(await client.embed({ model: 'tiny-chat', input: [] }).then(reply => reply.embeddings), [])
  t.same(await client.embeddings({ model: 'tiny-chat', prompt: '' }), { embedding: [] })

  const many = Array.from({ length: 70 }, (_, index) => (index % 2 ? 'Paris' : 'London'))
  const all = (await client.embed({ model: 'tiny-chat', input: many })).embeddings
  t.equal(all.length, many.length)
  t.ok(
    all.every((embedding, index) => Math.abs(embedding[0]! - embeddings[index % 2 ? 0 : 1]![0]!) < 1e-3),
    'the order is kept'
  )

  const gone = new AbortController()
  const body = JSON.stringify({ model: 'tiny-chat', input: Array.from({ length: 500 }, () => 'Paris '.repeat(400)) })
  const left = failure(fetch(`${address}/api/embed`, { method: 'POST', body, signal: gone.signal }))
  const running = async () => (await client.ps()).models.map((model: any) => model.running)
  await until('the request runs', async () => (await running()).includes(1))
  gone.abort()
  t.match(await left, { name: 'AbortError' })
  await until('the slot of a disconnected client is free', async () => (await running()).every(count => count === 0))

  const long = 'The capital of France is Paris. '.repeat(2000)
  t.match(
    await failure(
      client.embed({ model: 'tiny-chat', input: ['Paris', long], truncate: false, options: { num_ctx: 4096 } })
    ),
    {
      status_code: 400,
      error: /tokens.*context/
    }
  )
  const cut = await client.embed({ model: 'tiny-chat', input: ['Paris', long], truncate: true })
  t.equal(cut.embeddings.length, 2)
  t.ok(
    cut.embeddings[0]!.every((value, index) => Math.abs(value - embeddings[0]![index]!) < 1e-3),
    'the short text is unaffected'
  )
  t.ok(cut.prompt_eval_count > 4000)

  const native = await corral.json('/api/embed', { model: DEMO, input: 'Paris' })
  t.match(native, { status: 200, body: { model: DEMO } })
  t.equal(native.body.embeddings[0].length, 256)
  t.match(await corral.json('/api/embeddings', { model: DEMO, prompt: 'Paris' }), { status: 200 })
  for (const body of [{ input: 7 }, { input: [7] }, { input: { a: 1 } }, { input: 'x', dimensions: 0 }]) {
    t.match(await corral.json('/api/embed', { model: DEMO, ...body }), { status: 400 }, JSON.stringify(body))
  }
  t.match(await corral.json('/api/embed', { model: 'tiny-chat', input: 'x' }), {
    status: 200,
    body: { model: 'tiny-chat' }
  })
  await unload()
})

t.test('embedding models create embeddings and refuse chats', async t => {
  const folder = t.testdir()
  const encoder = join(folder, 'encoder.gguf')
  const decoder = join(folder, 'decoder.gguf')
  writeFileSync(encoder, randomEncoder('embedding', 1))
  await writeRandomDecoderEmbedding(decoder, 1)
  for (const [path, model] of [
    [encoder, 'library/encoder'],
    [decoder, 'library/decoder']
  ] as const) {
    t.equal((await corral.json('/api/import', { path, model })).status, 200, model)
  }
  const long = 'The capital of France is Paris. '.repeat(1000)
  for (const model of ['encoder', 'decoder']) {
    t.same(
      (await client.show({ model })).capabilities,
      ['embedding'],
      'the command line embeds the prompt in this case'
    )
    const { embeddings } = await client.embed({ model, input: ['Paris', long], truncate: true })
    t.ok(
      embeddings.every(embedding => Math.abs(length(embedding) - 1) < 1e-5),
      model
    )
    t.match(await failure(client.embed({ model, input: long, truncate: false, options: { num_ctx: 512 } })), {
      status_code: 400,
      error: /tokens.*context/
    })
    t.match(await failure(client.chat({ model, messages: [CAPITAL_QUESTION] })), { status_code: 400 })
    await client.delete({ model })
  }
})

t.test('the official client resolves names that several owners have, and variants', thorough, async t => {
  const file = `${t.testdir()}/one.gguf`
  writeGguf(file)
  for (const model of ['a/twin', 'b/twin', 'library/own', 'c/own', 'a/single:Q8_0', 'a/single:Q4_K_M']) {
    t.equal((await corral.json('/api/import', { path: file, model })).status, 200, model)
  }
  const names = (await client.list()).models.map(({ name }) => name).sort()
  t.same(names, [
    'a/single:Q4_K_M',
    'a/single:latest',
    'a/twin:latest',
    'b/twin:latest',
    'c/own:latest',
    `${DEMO}:latest`,
    'own:latest'
  ])
  for (const name of names) t.equal((await client.show({ model: name })).details.format, 'gguf', name)
  t.match(await failure(client.show({ model: 'twin' })), { status_code: 404, error: /a\/twin or b\/twin/ })
  t.match(await corral.json('/api/show', { model: 'own' }), { status: 200, body: { details: { name: 'library/own' } } })
  t.match((await corral.json('/api/tags')).body.models.map((model: any) => model.name).sort(), [
    'a/single',
    'a/single:Q4_K_M',
    'a/twin',
    'b/twin',
    'c/own',
    DEMO,
    'library/own'
  ])
  t.match(await client.delete({ model: 'own' }), { status: 'success' })
  t.equal((await corral.json('/api/show', { model: 'c/own' })).status, 200, "another owner's model is kept")
  t.equal((await corral.json('/api/show', { model: 'library/own' })).status, 404)
  t.match(await client.delete({ model: 'single' }), { status: 'success' })
  t.match((await client.show({ model: 'single:latest' })).details, { quantization_level: String })
  t.match((await corral.json('/api/tags')).body.models, [{ name: 'a/single' }], 'the other variant is kept')
  t.match(await client.delete({ model: 'single:q4_k_m' }), { status: 'success' })
})

t.test('the OpenAI API works at the same base address', thorough, async t => {
  for (const base of [profile, address]) {
    const chat = { model: 'tiny-chat', messages: [CAPITAL_QUESTION], temperature: 0 }
    const reply = await post(`${base}/v1/chat/completions`, chat)
    t.match(reply, { status: 200, lines: [{ choices: [{ message: { content: CAPITAL_ANSWER } }] }] }, base)
    const named = { ...chat, model: `${DEMO}:latest`, stream: true }
    t.match((await post(`${base}/v1/chat/completions`, named)).text, /data: \[DONE\]/)
    t.match(await get(`${base}/v1/models`), { lines: [{ object: 'list', data: Array }] })
    for (const name of ['tiny-chat', 'tiny%2Dchat?x=1', 'corral%2ftiny-chat']) {
      t.match(await get(`${base}/v1/models/${name}`), { lines: [{ object: 'model' }] })
    }
    const missing = { status: 404, lines: [{ error: { code: 'model_not_found', message: /"nix"/ } }] }
    t.match(await get(`${base}/v1/models/nix`), missing)
    t.match(await post(`${base}/v1/chat/completions`, { ...chat, model: 'nix' }), missing)
    t.match(await get(`${base}/v1/nix`), { status: 404, lines: [{ error: { code: 'route_not_found' } }] })
  }
  t.equal((await post(`${corral.url}/v1/chat/completions`, { model: 'tiny-chat' })).status, 400)
  const lines = corral.log().match(/"POST \/v1\/chat\/completions 200"/g)
  t.equal(lines?.length, 4, 'each request is logged once')
})
