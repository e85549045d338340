import { join } from 'node:path'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { createLlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import { buildOf, engineDeps } from '../../../runtimes/llama-server/support.ts'
import { until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { failure } from '../../../support/failure.ts'
import { newFolder } from '../../../support/folder.ts'
import { startService, variantOf } from './support.ts'

// Runs the official client against a real llama-server: results must match those of OpenAI's service.
// test/clients has the usual requests.
const MODEL = 'corral/tiny-chat'
const runs = newFolder(t)
const build = buildOf(join(engineBuildFolder(), process.platform === 'win32' ? 'llama-server.exe' : 'llama-server'))
let started = 0
const service = await startService(t, {
  variants: [
    variantOf('corral', 'tiny-chat'),
    variantOf('corral', 'tiny-chat', { label: 'Q8_0', isDefault: false }),
    variantOf('Other', 'One.5')
  ],
  defaults: { num_parallel: 1, temperature: 0 },
  startEngine: (spec, waiting) => {
    started++
    return createLlamaServerEngine(build, spec, engineDeps(runs), waiting)
  }
})
const client = new OpenAI({ baseURL: service.url, apiKey: 'any', maxRetries: 0 })
const question = { role: 'user' as const, content: 'What is the capital of France?' }
const ANSWER = 'The capital of France is Paris.'
t.test('the OpenAI API lists and shows models', async t => {
  const list = await client.models.list()
  t.strictSame(each(list.data, 'id'), ['corral/tiny-chat', 'corral/tiny-chat:Q8_0', 'Other/One.5'])
  t.match(list.data[0], {
    id: MODEL,
    object: 'model',
    created: 1767323045,
    owned_by: 'corral',
    type: 'model',
    display_name: MODEL,
    created_at: '2026-01-02T03:04:05.678Z',
    max_input_tokens: 1024
  } as never)
  for (const [asked, id] of [
    ['corral/tiny-chat', MODEL],
    ['CORRAL/Tiny-Chat', MODEL],
    ['corral/tiny-chat:latest', MODEL],
    ['corral/tiny-chat:f16', MODEL],
    ['corral/tiny-chat:q8_0', 'corral/tiny-chat:Q8_0'],
    ['other/one.5', 'Other/One.5']
  ] as const) {
    t.match(await client.models.retrieve(asked), { id, object: 'model' }, 'the client sends %2F')
    t.match((await service.json(`/models/${asked}`)).body, { id })
    const head = await fetch(`${service.url}/models/${asked}`, { method: 'HEAD' })
    t.equal(head.status, 200)
    t.equal(await head.text(), '')
  }
  t.ok((await failure(client.models.retrieve('corral/none'))) instanceof OpenAI.NotFoundError)
  t.ok((await failure(client.models.retrieve('none'))) instanceof OpenAI.NotFoundError)
  t.equal((await fetch(`${service.url}/models`, { method: 'HEAD' })).status, 200)
  const anthropic = new Anthropic({ baseURL: service.url.replace('/v1', ''), apiKey: 'any', maxRetries: 0 })
  const ids: string[] = []
  for await (const model of anthropic.models.list({ limit: 1 })) ids.push(model.id)
  t.strictSame(
    ids,
    list.data.map(({ id }) => id),
    'page by page'
  )
  t.match(await anthropic.models.retrieve(MODEL), { type: 'model', display_name: MODEL, created_at: String })
  t.match(await service.json('/models?limit=0'), { status: 400, body: { error: { param: 'limit' } } })
  t.equal(started, 0, 'no model is loaded')
})

t.test('the OpenAI API answers with the name in the request', async t => {
  const messages = [question]
  const stream = await client.chat.completions.create({ model: 'Corral/tiny-chat:LATEST', messages, stream: true })
  for await (const chunk of stream) t.equal(chunk.model, 'Corral/tiny-chat:LATEST')
  t.equal(started, 1)
  const raw = await service.json('/chat/completions', { model: MODEL, messages: [{ content: question.content }] })
  t.equal(raw.body.choices[0].message.content, ANSWER, 'a message without a role is from the user')
})

t.test('a stream of several choices has only valid chunks', async t => {
  const text = await (
    await service.send('/completions', { model: MODEL, prompt: ['hi', 'ho'], max_tokens: 2, stream: true })
  ).text()
  t.notMatch(text, 'data: null')
  t.ok(text.endsWith('data: [DONE]\n\n'))
  const indexes = new Set<number>()
  const stream = await client.completions.create({ model: MODEL, prompt: ['hi', 'ho'], max_tokens: 2, stream: true })
  for await (const chunk of stream) indexes.add(chunk.choices[0]!.index)
  t.strictSame([...indexes].sort(), [0, 1])
})

t.test('options work on /v1', async t => {
  const ask = async (content: string, options: object) => {
    const request = { model: MODEL, messages: [{ content }], options }
    return (await service.json('/chat/completions', request)).body.choices[0].message.content
  }
  t.equal(await ask(question.content, { temperature: 0, max_tokens: 4 }), 'The capital of Fra')
  const varied = { temperature: 5, top_p: 1, top_k: 0, max_tokens: 12 }
  t.equal(await ask('Purple', { ...varied, seed: 7 }), await ask('Purple', { ...varied, seed: 7 }))
  const random = await Promise.all(Array.from({ length: 6 }, () => ask('Purple', varied)))
  t.ok(new Set(random).size > 1, 'answers differ without a seed')
})

t.test('the OpenAI API tokenizes and detokenizes', async t => {
  const { body } = await service.json('/tokenize', { model: MODEL, content: 'Hello there' })
  t.ok(body.tokens.length > 0)
  t.match((await service.json('/detokenize', { model: MODEL, tokens: body.tokens })).body, { content: /Hello there/ })
  const beyond = await service.json('/detokenize', { model: MODEL, tokens: [99_999_999] })
  t.match(beyond, { status: 400, body: { error: { code: 'invalid_request', message: /out of range/ } } })
  t.match(await service.json('/tokenize', { model: MODEL }), { status: 400, body: { error: { param: 'content' } } })
})

t.test('embeddings use a separate engine', async t => {
  const named = await service.json('/embeddings', { model: 'CORRAL/tiny-chat', input: 'x' })
  t.equal(named.body.model, 'CORRAL/tiny-chat')
  t.strictSame(
    service.scheduler
      .running()
      .map(({ mode }) => mode)
      .sort(),
    ['chat', 'embedding']
  )
  const long = await service.json('/embeddings', { model: MODEL, input: 'hello '.repeat(5000) })
  t.match(long, { status: 400, body: { error: { code: 'context_length_exceeded' } } })
})

t.test('an aborted request without a stream frees its slot', async t => {
  // Only the end of the context stops this answer.
  const endless = { model: MODEL, messages: [question], max_tokens: -1, logit_bias: {}, ignore_eos: true }
  const controller = new AbortController()
  const rejected = failure(client.chat.completions.create(endless as never, { signal: controller.signal }))
  await until('the request runs', () => service.scheduler.running().some(model => model.running === 1))
  controller.abort()
  t.ok((await rejected) instanceof OpenAI.APIUserAbortError)
  await until('the slot is free', () => service.scheduler.running().every(model => model.running === 0))
})

t.test('killing the engine ends the stream with an error', async t => {
  const stream = await service.send('/chat/completions', {
    model: MODEL,
    messages: [question],
    stream: true,
    max_tokens: -1,
    ignore_eos: true
  })
  const reader = stream.body!.getReader()
  // Until an answer has begun, a lost engine is replaced.
  let text = ''
  while (!text.includes('"content":"')) text += Buffer.from((await reader.read()).value!).toString()
  const { pid } = service.scheduler.running().find(({ mode }) => mode === 'chat')!.engine
  process.kill(pid!, 'SIGKILL')
  for (let part = await reader.read(); !part.done; part = await reader.read())
    text += Buffer.from(part.value).toString()
  const events = text.trimEnd().split('\n\n')
  t.match(JSON.parse(events.at(-1)!.slice('data: '.length)), {
    error: { code: 'engine_crashed', type: 'server_error' }
  })
  t.notMatch(text, '[DONE]')
  const next = await client.chat.completions.create({ model: MODEL, messages: [question] })
  t.equal(next.choices[0]!.message.content, ANSWER, 'the next request is answered')
})
