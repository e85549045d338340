import { createHash } from 'node:crypto'
import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, until } from '../../../support/corral.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, quantizedModels } from '../../models/download/support.ts'
import { ask, WEATHER } from './support.ts'

/*
 * Replays the requests that Open WebUI 0.12.4 sends to Ollama (backend/open_webui/routers/ollama.py and
 * retrieval/utils.py), with the headers of aiohttp, and checks what it reads from the replies (utils/response.py). It
 * expects JSON lines although it accepts anything.
 */
const { Q8_0, Q4_K_M } = quantizedModels()
const files = { 'README.md': '# Tiny\n', 'tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M }
const hub = await startHubEmulator(t, { repositories: { 'test/tiny-GGUF': { files } } })
const corral = await corralWithHub(t, hub, { config: 'defaults: { num_parallel: 1, temperature: 0 }' })
const url = `${corral.url}/ollama`

const HEADERS = {
  accept: '*/*',
  'accept-encoding': 'gzip, deflate',
  'user-agent': 'Python/3.12 aiohttp/3.14.1',
  'content-type': 'application/json',
  // A key that the user set for the connection. The server does not need one.
  authorization: 'Bearer sk-anything'
}
const get = (path: string) => ask('GET', url + path, HEADERS)
const send = (path: string, body: unknown, method = 'POST') => ask(method, url + path, HEADERS, JSON.stringify(body))
const MODEL = 'test/tiny-GGUF:latest'

t.test('Open WebUI verifies the connection, then pulls a model with progress', async t => {
  const { version } = (await get('/api/version')).lines[0]
  const parts: string[] = version.replace(/^v|-.*/, '').split('.')
  t.ok(
    parts.every(part => /^\d+$/.test(part)),
    'Open WebUI compares versions part by part'
  )
  t.same((await get('/api/tags')).lines[0].models, [])
  const pulled = await send('/api/pull', {
    name: 'hf.co/test/tiny-GGUF:Q8_0',
    model: 'hf.co/test/tiny-GGUF:Q8_0',
    insecure: true
  })
  t.equal(pulled.status, 200)
  t.match(pulled.lines[0], { status: /^pulling / })
  t.equal(pulled.lines.at(-1).status, 'success')
  const progress = pulled.lines.filter(line => line.digest)
  t.same(
    [...new Set(progress.map(({ digest }) => digest))].sort(),
    ['README.md', 'tiny-Q8_0.gguf'],
    'a progress bar for each file'
  )
  t.ok(progress.some(({ completed, total }) => completed === total && total === Q8_0.length))
  t.match(await send('/api/pull', { name: 'llama3.2', model: 'llama3.2', insecure: true }), {
    status: 404,
    lines: [{ error: String }]
  })
})

t.test('Open WebUI lists models, models in memory, and details', async t => {
  const { models } = (await get('/api/tags')).lines[0]
  t.match(models, [{ name: MODEL, model: MODEL, details: { parameter_size: String, quantization_level: 'Q8_0' } }])
  await send('/api/generate', { model: MODEL, prompt: '', stream: false })
  const loaded = (await get('/api/ps')).lines[0].models
  t.equal(loaded[0].model, models[0].model, 'both lists use the same name')
  t.ok(Date.parse(loaded[0].expires_at) > Date.now())
  t.match(await send('/api/show', { model: MODEL }), {
    status: 200,
    lines: [{ model_info: Object, capabilities: Array }]
  })
  t.match(await send('/api/show', { model: 'nix:latest' }), { status: 404, lines: [{ error: /not found/ }] })
})

t.test('chats with options, tools and formats', async t => {
  const options = { temperature: 0, num_ctx: 2048, num_predict: 128, top_k: 40, repeat_last_n: 64, num_thread: 2 }
  const chat = { model: MODEL, messages: [CAPITAL_QUESTION], options, stream: true, keep_alive: '5m' }
  const streamed = await send('/api/chat', chat)
  t.equal(streamed.status, 200)
  t.equal(streamed.lines.map(line => line.message.content).join(''), CAPITAL_ANSWER)
  const last = streamed.lines.at(-1)
  t.match(last, { done: true, done_reason: 'stop' })
  // The speeds that are shown below an answer.
  t.ok(
    last.eval_count / (last.eval_duration / 1e9) > 0 && last.prompt_eval_count / (last.prompt_eval_duration / 1e9) > 0
  )
  t.ok(Math.floor(last.total_duration / 1e9) < 3600)
  const whole = await send('/api/chat', { ...chat, stream: false })
  t.match(whole, { type: /^application\/json/, lines: [{ message: { content: CAPITAL_ANSWER }, done: true }] })

  const tools = [WEATHER]
  const messages = [{ role: 'user', content: 'What is the weather in Paris?' }]
  const called = await send('/api/chat', { ...chat, messages, tools })
  const calls = called.lines.flatMap(line => line.message.tool_calls ?? [])
  t.match(calls, [{ function: { name: 'get_weather', arguments: { city: 'Paris' } } }])
  // Its own middleware returns the result in this form.
  const answered = await send('/api/chat', {
    ...chat,
    messages: [
      ...messages,
      { role: 'assistant', content: '', tool_calls: calls },
      { role: 'tool', content: 'sunny, 21 degrees', tool_call_id: calls[0].id ?? 'call_0' }
    ],
    tools
  })
  t.match(answered.lines.map(line => line.message.content).join(''), /sunny|21/)

  const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] }
  const structured = await send('/api/chat', { ...chat, format: schema, stream: false })
  t.type(JSON.parse(structured.lines[0].message.content).ok, 'boolean')
  const generated = await send('/api/generate', { model: MODEL, prompt: CAPITAL_QUESTION.content, stream: true })
  t.equal(generated.lines.map(line => line.response).join(''), CAPITAL_ANSWER)
  t.match(await send('/api/chat', { ...chat, options: { temperature: 'hot' } }), {
    status: 400,
    lines: [{ error: /temperature/ }]
  })
})

t.test('other APIs work at the same base address', async t => {
  const chat = { model: MODEL, messages: [CAPITAL_QUESTION], temperature: 0, stream: true }
  const hosted = await send('/v1/chat/completions', chat)
  t.match(hosted, { status: 200, type: /^text\/event-stream/, text: /\[DONE\]/ })
  const messages = await send('/v1/messages', { ...chat, max_tokens: 64, stream: false })
  t.match(messages, { status: 200, lines: [{ type: 'message', content: [{ text: CAPITAL_ANSWER }] }] })
})

t.test('Open WebUI embeds documents', async t => {
  const { status, lines } = await send('/api/embed', {
    input: ['Paris', 'London', 'x '.repeat(9000)],
    model: MODEL,
    truncate: true
  })
  t.equal(status, 200)
  t.equal(lines[0].embeddings.length, 3)
  t.ok(lines[0].embeddings.every((vector: number[]) => vector.length === 256))
  const single = await send('/api/embeddings', { model: MODEL, prompt: 'Paris' })
  t.equal(single.lines[0].embedding.length, 256)
  t.match(await send('/api/embed', { input: ['x'], model: 'nix', truncate: true }), {
    status: 404,
    lines: [{ error: /not found/ }]
  })
})

t.test('uploads a model file, creates, copies and deletes the model', async t => {
  const digest = createHash('sha256').update(Q4_K_M).digest('hex')
  const blob = await ask(
    'POST',
    `${url}/api/blobs/sha256:${digest}`,
    { ...HEADERS, 'content-type': 'application/octet-stream' },
    Q4_K_M
  )
  t.ok(blob.status < 300, blob.text)
  const created = await send('/api/create', {
    model: 'tiny-Q4_K_M',
    files: { 'tiny-Q4_K_M.gguf': `sha256:${digest}` },
    stream: false
  })
  t.match(created, { status: 200 }, created.text)
  const { models } = (await get('/api/tags')).lines[0]
  t.ok(models.some(({ model }: any) => model === 'tiny-Q4_K_M:latest'))
  t.match(await send('/api/copy', { source: 'tiny-Q4_K_M:latest', destination: 'copy' }), { status: 200 })
  for (const model of ['tiny-Q4_K_M:latest', 'copy:latest']) {
    t.match(await send('/api/delete', { model }, 'DELETE'), { status: 200 }, model)
  }
  t.match(await send('/api/delete', { model: 'copy:latest' }, 'DELETE'), { status: 404, lines: [{ error: String }] })
})

t.test('Open WebUI unloads a model', async t => {
  const unloaded = await send('/api/generate', { model: MODEL, keep_alive: 0, prompt: '' })
  t.match(unloaded, { status: 200, type: /^application\/json/, lines: [{ done_reason: 'unload' }] })
  await until('no model is in memory', async () => (await get('/api/ps')).lines[0].models.length === 0)
})
