import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import {
  alive,
  begin,
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  capital,
  DEMO,
  endless,
  endlessHosted,
  joined,
  lastEvent,
  startCorral,
  until
} from '../support/corral.ts'
import { FAILS_TO_LOAD, NEVER_READY, scriptedBuild } from '../support/scripted-build.ts'

const corral = await startCorral(t, { env: { CORRAL_LLAMA_CPP: scriptedBuild(t), HF_HUB_OFFLINE: '1' } })
const GGUF = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

let copies = 0
/** A model that only one test uses. */
async function freshModel(): Promise<string> {
  const model = `test/copy-${++copies}`
  const path = join(corral.home, `copy-${copies}.gguf`)
  copyFileSync(GGUF, path)
  const { status, body } = await corral.json('/api/import', { model, path })
  if (status !== 200) throw new Error(JSON.stringify(body))
  return model
}

const listed = async () => (await corral.json('/api/ps')).body
/** The entry of a loaded model. */
const entryOf = async (model: string) => (await listed()).models.find((entry: any) => entry.model === model)

/** Loads a model. Resolves with the future reply when the server lists the model as loading or loaded. */
async function loading(t: Test, model: string): Promise<Promise<any>> {
  const asked = corral.json('/api/load', { model })
  await until('it loads', async () => {
    const { loading, models } = await listed()
    return [...loading, ...models].some(entry => entry.model === model)
  })
  t.teardown(() => asked)
  return asked
}

t.test('stop ends running streams with model_stopped on both APIs', async t => {
  const model = await freshModel()
  for (const [path, body] of [
    ['/api/chat', endless(model)],
    ['/v1/chat/completions', endlessHosted(model)]
  ] as const) {
    const stream = await begin(corral, path, body)
    const engines = corral.enginePids()
    t.match((await corral.json('/api/stop', { model })).body, { status: 'stopped' })
    t.notOk(engines.some(alive), 'the reply comes after the engine has ended')
    const text = await stream.rest()
    t.notMatch(text, /\[DONE\]/)
    if (path === '/api/chat')
      t.match(lastEvent(text), { done: true, done_reason: 'error', code: 'model_stopped', errorCode: 503 })
    else t.match(lastEvent(text), { error: { code: 'model_stopped' } })
  }
})

t.test('stop before the first output answers 503', async t => {
  const model = await freshModel()
  const waiting = corral.json('/api/chat', { ...endless(model), stream: false })
  await until('it runs', async () => (await listed()).models.some((entry: any) => entry.running === 1))
  await corral.json('/api/stop', { model })
  t.match(await waiting, { status: 503, body: { code: 'model_stopped' } })
})

t.test('delete ends running answers with model_deleted and refuses new requests with 404', async t => {
  const model = await freshModel()
  const stream = await begin(corral, '/api/chat', endless(model))
  const deleted = corral.json('/api/delete', { model }, { method: 'DELETE' })
  await until(
    'it is deleted',
    async () => !(await corral.json('/api/tags')).body.models.some((entry: any) => entry.name === model)
  )
  const next = await corral.json('/api/chat', { model, messages: [CAPITAL_QUESTION] })
  t.match(next, { status: 404, body: { code: 'model_not_found' } })
  t.match(await deleted, { status: 200, body: { status: 'deleted' } })
  t.match(lastEvent(await stream.rest()), { done_reason: 'error', code: 'model_deleted' })
  t.notOk((await corral.json('/api/tags')).body.models.some((entry: any) => entry.name === model))
})

t.test('stop and delete end a load on both APIs', async t => {
  const isLoading = (model: string) => async () =>
    (await listed()).loading.some((entry: any) => entry.model === model && entry.state === 'loading')
  for (const path of ['/api/chat', '/v1/chat/completions']) {
    const model = await freshModel()
    const wait = () => corral.json(path, { model, messages: [CAPITAL_QUESTION], options: NEVER_READY, stream: false })
    const getCode = ({ status, body }: any) => [status, body.code ?? body.error.code]

    const stopped = wait()
    await until('it loads', isLoading(model))
    t.match(await corral.json('/api/stop', { model }), { status: 200, body: { status: 'stopped' } })
    t.same(getCode(await stopped), [503, 'model_stopped'])
    t.notOk((await listed()).loading.length, 'nothing is loading any more')

    const removed = wait()
    await until('it loads', isLoading(model))
    t.equal((await corral.json('/api/delete', { model }, { method: 'DELETE' })).status, 200)
    t.same(getCode(await removed), [404, 'model_not_found'])
    t.notOk((await listed()).loading.length, 'nothing is loading any more')
  }
})

t.test('a downloaded model that is not loaded can be stopped, deleted, imported again and loaded', async t => {
  const model = await freshModel()
  t.match(await corral.json('/api/stop', { model }), { status: 404, body: { code: 'model_not_loaded' } })
  t.match(await corral.json('/api/import', { model, path: GGUF }), { status: 200, body: { status: 'success' } })
  t.match(await corral.events('/api/pull', { model }), [{ status: `pulling ${model}` }, { status: 'success' }])
  t.match(await corral.json('/api/load', { model }), { status: 200 })
  await corral.json('/api/stop', { model })
  t.equal((await corral.json('/api/delete', { model }, { method: 'DELETE' })).status, 200)
  for (const path of ['/api/stop', '/api/load', '/api/show']) {
    t.match(await corral.json(path, { model }), { status: 404, body: { code: 'model_not_found' } }, `absent: ${path}`)
  }
  t.equal((await corral.json('/api/delete', { model }, { method: 'DELETE' })).status, 404)
})

t.test('importing a new revision keeps the running engine, and the next load uses the new revision', async t => {
  const model = await freshModel()
  const stream = await begin(corral, '/api/chat', endless(model))
  const before = (await corral.json('/api/show', { model })).body.details.digest
  const other = join(corral.home, 'other.gguf')
  const bytes = readFileSync(GGUF)
  // Another weight: the answers are the same, the file is not.
  bytes[bytes.length - 3] = bytes[bytes.length - 3]! ^ 1
  writeFileSync(other, bytes)
  t.match(await corral.json('/api/import', { model, path: other }), { status: 200 })
  t.not((await corral.json('/api/show', { model })).body.details.digest, before)
  t.equal((await entryOf(model)).digest, before)
  await stream.leave()
  await until('the slot is free', async () => (await listed()).models.every((entry: any) => entry.running === 0))
  await corral.json('/api/stop', { model })
  const { body } = await corral.json('/api/chat', capital(model))
  t.equal(body.message.content, CAPITAL_ANSWER)
  t.not((await entryOf(model)).digest, before)
})

t.test('a request with other load options drains and reloads without losing a request', async t => {
  const model = await freshModel()
  const ask = (options: object) => corral.json('/api/chat', capital(model, options))
  await ask({ num_ctx: 512 })
  t.equal((await entryOf(model)).options.num_ctx, 512)
  const running = corral.events('/api/chat', {
    model,
    messages: [{ content: 'Tell me a story about a fox.' }],
    options: { temperature: 0 }
  })
  const answers = await Promise.all([
    ask({ num_ctx: 1024 }),
    ask({}),
    ask({ cache_type_k: 'q8_0', num_ctx: 100 }),
    ask({})
  ])
  for (const { status, body } of answers)
    t.equal(body.message?.content, CAPITAL_ANSWER, `${status} ${body.error ?? ''}`)
  t.ok(joined(await running).length > 100, 'the story is complete')
  t.match((await entryOf(model)).options, {
    num_ctx: 1024,
    cache_type_k: 'q8_0'
  })
})

t.test('a failed reload restores the old engine and fails only the request that caused it', async t => {
  const model = await freshModel()
  const ask = (options: object = {}) => corral.json('/api/chat', capital(model, options))
  await ask()
  const [failed, fine] = await Promise.all([ask(FAILS_TO_LOAD), ask()])
  t.match(failed, { status: 500, body: { code: 'load_failed', cause: 'context_failed', error: /as scripted/ } })
  t.equal(fine.body.message?.content, CAPITAL_ANSWER)
  t.equal((await entryOf(model)).options.cache_type_k, 'f16', 'the previous engine runs again')
})

t.test('a client that disconnects frees its slot', async t => {
  const model = await freshModel()
  await corral.json('/api/load', { model, options: { num_parallel: 1, num_ctx: 32_000 } })
  for (const [path, body] of [
    ['/api/chat', endless(model)],
    ['/v1/chat/completions', endlessHosted(model)]
  ] as const) {
    const stream = await begin(corral, path, body)
    const next = corral.json('/api/chat', capital(model))
    await until('the next one waits', async () => (await listed()).models.some((entry: any) => entry.queued === 1))
    await stream.leave()
    t.equal((await next).body.message.content, CAPITAL_ANSWER)
  }
  // Before the first byte, too.
  const controller = new AbortController()
  const silent = corral
    .send('/api/chat', { ...endless(model), stream: false }, { signal: controller.signal })
    .catch(() => 'left')
  await until('it runs', async () => (await listed()).models.some((entry: any) => entry.running === 1))
  controller.abort()
  t.equal(await silent, 'left')
  await until('its slot is free', async () => (await listed()).models.every((entry: any) => entry.running === 0))
})

t.test('a whole answer ends as soon as its client disconnects while another request streams', async t => {
  const model = await freshModel()
  await corral.json('/api/load', { model, options: { num_parallel: 2, num_ctx: 32_000 } })
  for (const path of ['/api/chat', '/v1/chat/completions']) {
    const stream = await begin(corral, '/api/chat', endless(model, { max_tokens: 15_000 }))
    const controller = new AbortController()
    const long = { ...endless(model, { max_tokens: 30_000 }), stream: false }
    const left = corral.send(path, long, { signal: controller.signal }).catch(() => 'left')
    const running = async () => (await entryOf(model)).running
    await until('both run', async () => (await running()) === 2)
    controller.abort()
    t.equal(await left, 'left')
    t.equal((await corral.json('/api/chat', capital(model))).body.message.content, CAPITAL_ANSWER)
    t.equal(await running(), 1, 'the other answer still runs')
    await stream.leave()
    await until('it has ended', async () => (await running()) === 0)
  }
})

t.test('two names of one variant share an engine', async t => {
  await loading(t, DEMO)
  const before = corral.enginePids().length
  const { body } = await corral.json('/api/chat', capital('Corral/Tiny-Chat:f16'))
  t.equal(body.error, undefined)
  t.match(body, { model: 'Corral/Tiny-Chat:f16', message: { content: CAPITAL_ANSWER } })
  t.equal(corral.enginePids().length, before)
})

t.test('a request with several choices waits until enough slots are free', async t => {
  const model = await freshModel()
  const first = await begin(corral, '/v1/chat/completions', endlessHosted(model))
  const asked = { model, n: 4, max_tokens: 3, messages: [CAPITAL_QUESTION] }
  const choices = corral.json('/v1/chat/completions', asked)
  await until('it waits', async () => {
    const entry = await entryOf(model)
    return entry?.running === 1 && entry.queued === 1
  })
  await first.leave()
  const { status, body } = await choices
  t.equal(status, 200)
  t.equal(body.choices.length, 4)
})
