import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { parse } from 'yaml'
import { packageRoot } from '../../core/system/package-info.ts'
import { importModels, MODELS, writeModels } from '../plugins/apis/openai/media/support.ts'
import { TINY_CHAT } from '../plugins/models/download/support.ts'
import { ADDER, toolProgram } from '../plugins/tools/support.ts'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { type Call, Caller } from './api-document.ts'

// Calls every operation on a real server and checks its replies against the document.

const HUB_MODEL = 'test/tiny-GGUF'
const slow = { size: 64 * 1024 * 1024, seed: 1, head: readFileSync(TINY_CHAT).subarray(0, 4096) }
const hub = await startHubEmulator(t, {
  repositories: {
    [HUB_MODEL]: { files: { 'tiny-F16.gguf': readFileSync(TINY_CHAT) } },
    'test/slow-GGUF': { files: { 'slow-F16.gguf': slow } }
  },
  bandwidth: { total: 2 * 1024 * 1024 }
})
const caches = newFolder(t)
const corral = await startCorral(t, {
  env: { HF_ENDPOINT: hub.url, HF_HOME: caches, HF_TOKEN: '', HF_HUB_OFFLINE: '' },
  config: `defaults:
  num_parallel: 2
  temperature: 0
web:
  conversations: server
mcp:
  servers:
    math: { command: node, arguments: [${toolProgram(t, ADDER)}] }
    absent: { command: /nothing/here }
`
})
// Fetched before models are installed, because its examples name installed models.
const document = (await corral.json('/openapi.json')).body
await importModels(corral, await writeModels(t.testdir()))

const caller = new Caller(corral, document)

const readFixture = (name: string) =>
  parse(readFileSync(join(packageRoot, 'test', 'docs', 'fixtures', `${name}.yaml`), 'utf8'))
const CALLS: Record<string, [id: string, status: number, call?: Call, kept?: string[]][]> = readFixture('replies')

/** Makes the calls of one group in `fixtures/replies.yaml`. @returns the values, and the fields of replies */
async function callAll(t: Test, group: string, more: Record<string, unknown> = {}): Promise<Record<string, any>> {
  const [owner, name] = DEMO.split('/')
  const { embedding: EMBEDDER, reranker: RERANKER, hearing: HEARING } = MODELS
  const messages = { capital: [CAPITAL_QUESTION], weather: [WEATHER], hi: [{ role: 'user', content: 'Hi' }] }
  const values: Record<string, any> = {
    DEMO,
    EMBEDDER,
    RERANKER,
    HEARING,
    owner,
    name,
    ...messages,
    tools: [TOOL],
    ...more
  }
  const fill = (_: string, value: unknown) => {
    if (typeof value !== 'string') return value
    const whole = /^\$(\w+)$/.exec(value)?.[1]
    return whole ? values[whole] : value.replace(/\$(\w+)/g, (_, name) => values[name])
  }
  for (const [id, status, call = {}, kept = []] of CALLS[group]!) {
    const reply = await caller.call(t, id, status, JSON.parse(JSON.stringify(call), fill))
    for (const path of kept) {
      const keys = path.split('.')
      const value = keys.reduce((at, key) => at?.[key], reply)
      t.ok(value !== undefined, `${id} has ${path}`)
      values[keys.at(-1)!] = value
    }
  }
  return values
}

const WEATHER = { role: 'user', content: 'What is the weather in Paris?' }
const TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  }
}
const chat = { model: DEMO, messages: [CAPITAL_QUESTION] }
const sse = { 'x-stream-format': 'sse' }
const ndjson = { 'x-stream-format': 'ndjson' }

t.test('the served document equals the committed one', async t => {
  t.strictSame(document, JSON.parse(readFileSync(join(packageRoot, 'docs', 'openapi.json'), 'utf8')))
})

t.test('routes of the server itself reply as documented', async t => {
  await until('the build is found', async () => (await corral.send('/readyz')).status === 200)
  await callAll(t, 'routes of the server itself')
  const page = await caller.call(t, 'root', 200, { headers: { accept: 'text/html,*/*' } })
  t.match(page.text, '<title>corral</title>')
  t.match(page.headers.get('content-security-policy'), "default-src 'none'")
  t.match((await caller.call(t, 'root', 200)).text, /^corral is running[^<]+\n$/)
  t.equal((await corral.send('/', undefined, { method: 'HEAD' })).status, 200)
})

for (const mount of ['', 'ollama']) {
  const id = (native: string) => (mount ? `${mount}${native[0]!.toUpperCase()}${native.slice(1)}` : native)
  t.test(`models and answers reply as documented${mount && ', also for Ollama'}`, async t => {
    const call = (native: string, body?: unknown, more: object = {}) =>
      caller.call(t, id(native), 200, { ...(body === undefined ? {} : { body }), ...more })
    for (const native of ['listLocalModels', 'getHealth', 'getVersion']) await call(native)
    await call('loadModel', { model: DEMO })
    await call('loadModel', { model: DEMO, stream: true })
    for (const headers of [sse, ndjson]) {
      await call('chat', { ...chat, options: { max_tokens: 5 } }, { headers })
      await call('chat', { model: DEMO }, { headers })
      await call('generate', { model: DEMO, prompt: 'Hello', options: { num_predict: 5 } }, { headers })
      await call('generate', { model: DEMO }, { headers })
      const tools = await call('chat', { model: DEMO, messages: [WEATHER], tools: [TOOL] }, { headers })
      t.match(tools.text, '"tool_calls"')
    }
    await call('chat', { ...chat, stream: false })
    const asked = await call('chat', { model: DEMO, messages: [WEATHER], tools: [TOOL], stream: false })
    t.match(asked.message.tool_calls, [{ function: { name: 'get_weather' } }])
    await call('generate', { model: DEMO, prompt: 'Hello', stream: false })
    await call('generate', { model: DEMO, stream: false })
    const { models } = await call('listRunningModels')
    t.equal(models[0].name.replace(/:latest$/, ''), DEMO)
    await call('showModel', { model: DEMO })
    await call('chat', { model: DEMO, keep_alive: 0 })
    await until('it is unloaded', async () => (await call('listRunningModels')).models.length === 0)
    await call('embed', { model: MODELS.embedding, input: ['a', 'b'] })
    await call('embeddings', { model: MODELS.embedding, prompt: 'a' })
    await call('stopModel', { model: MODELS.embedding })
  })

  t.test(`pulls and imports reply as documented${mount && ', also for Ollama'}`, async t => {
    const call = (native: string, body?: unknown, more: object = {}) =>
      caller.call(t, id(native), 200, { ...(body === undefined ? {} : { body }), ...more })
    await call('findImports', undefined, { query: '?from=huggingface' })
    await call('importModel', { model: 'test/imported', path: TINY_CHAT, stream: false })
    await call('importModel', { model: 'test/imported:other', path: TINY_CHAT, stream: true })
    await call('setDefaultVariant', { model: 'test/imported:other' })
    await call('deleteModel', { model: 'test/imported' })

    hub.bandwidth.total = 64 * 1024 * 1024
    await call('pullModel', { model: HUB_MODEL, dry_run: true })
    await call('pullModel', { model: HUB_MODEL })
    await call('deleteModel', { model: HUB_MODEL })
    await call('pullModel', { model: HUB_MODEL, stream: false })
    await call('deleteModel', { model: HUB_MODEL })
    hub.bandwidth.total = 1024 * 1024
    const { id: pull } = await caller.call(t, id('pullModel'), 202, { body: { model: 'test/slow-GGUF', detach: true } })
    t.equal((await call('listPulls')).pulls.length, 1)
    await call('listRecommended')
    await call('showCard', { model: HUB_MODEL })
    await call('getPull', undefined, { params: { id: pull } })
    for (const native of ['pausePull', 'resumePull', 'cancelPull']) await call(native, { id: pull })
  })
}

for (const mount of ['', 'ollama']) {
  const id = (native: string) => (mount ? `${mount}${native[0]!.toUpperCase()}${native.slice(1)}` : native)
  t.test(`created models reply as documented${mount && ', also for Ollama'}`, async t => {
    const { files } = await caller.call(t, 'showModel', 200, { body: { model: DEMO } })
    const digest = `sha256:${files[0].sha256}`
    const body = readFileSync(TINY_CHAT)
    const address = `${corral.url}${mount && `/${mount}`}/api/blobs/${digest}`
    const { status } = await fetch(address, { method: 'POST', body })
    t.ok([200, 201].includes(status))
    caller.seen.set(id('storeBlob'), new Set([status]))
    await caller.call(t, id('findBlob'), 404, { params: { digest: `sha256:${'0'.repeat(64)}` } })
    await caller.call(t, id('findBlob'), 200, { params: { digest } })
    const made = { model: 'test/made', files: { 'a.gguf': digest }, system: 'Be short.' }
    await caller.call(t, id('createModel'), 200, { body: made })
    await caller.call(t, id('createModel'), 200, { body: { ...made, stream: false } })
    await caller.call(t, id('copyModel'), 200, { body: { source: 'test/made', destination: 'test/copied' } })
    for (const model of ['test/made', 'test/copied']) {
      await caller.call(t, id('showModel'), 200, { body: { model } })
      await caller.call(t, id('deleteModel'), 200, { body: { model } })
    }
    await caller.call(t, id('pushModel'), 501, { body: { model: DEMO } })
  })
}

t.test("routes of Ollama's cloud reply as documented", async t => {
  await callAll(t, "routes of Ollama's cloud")
})

t.test('the OpenAI API replies as documented', async t => {
  const call = (id: string, more: Call) => caller.call(t, id, 200, more)
  await callAll(t, 'chats, completions and vectors of the OpenAI API')
  const { headers: named } = await corral.send(
    '/v1/chat/completions',
    { model: DEMO, messages: [{ role: 'user', content: 'Hello' }], stream: true },
    { headers: { 'x-corral-resumable': 'true' } }
  )
  const stream = { params: { id: named.get('x-corral-stream-id')! } }
  for (const name of ['Stream', 'NativeStream']) await call(`resume${name}`, stream)
  await call('ollamaResumeNativeStream', stream)
  await call('cancelStream', stream)
  for (const name of ['cancelNativeStream', 'ollamaCancelNativeStream']) {
    const again = await corral.send(
      '/api/chat',
      { model: DEMO, messages: [{ content: 'Hello' }] },
      { headers: { 'x-corral-resumable': 'true' } }
    )
    await call(name, { params: { id: again.headers.get('x-corral-stream-id')! } })
  }
  // Half a second of silence: 16-bit mono samples at 16,000 Hz.
  const sound = Buffer.alloc(44 + 16_000)
  sound.write('RIFF$\u0000\u0000\u0000WAVEfmt ', 0, 'latin1')
  sound.writeUInt32LE(36 + 16_000, 4)
  for (const [at, value] of [
    [16, 16],
    [24, 16_000],
    [28, 32_000],
    [40, 16_000]
  ] as const)
    sound.writeUInt32LE(value, at)
  for (const [at, value] of [
    [20, 1],
    [22, 1],
    [32, 2],
    [34, 16]
  ] as const)
    sound.writeUInt16LE(value, at)
  sound.write('data', 36)
  const file = `data:audio/wav;base64,${sound.toString('base64')}`
  await callAll(t, 'responses, tokens and what cannot be generated', { sound: file })
})

t.test('files and batches reply as documented', async t => {
  const call = (id: string, more: object = {}) => caller.call(t, id, 200, more)
  const line = { custom_id: 'one', method: 'POST', url: '/v1/chat/completions', body: chat }
  const field = (head: string, value: string) => `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${value}\r\n`
  const form = [
    field('name="purpose"', 'batch'),
    field('name="file"; filename="lines.jsonl"', JSON.stringify(line)),
    '--b--\r\n'
  ].join('')
  const { id } = await call('createUserFile', {
    body: form,
    headers: { 'content-type': 'multipart/form-data; boundary=b' }
  })
  await call('listUserFiles')
  await call('getUserFile', { params: { id } })
  await call('getUserFileContent', { params: { id } })
  const body = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const batch = await call('createBatch', { body })
  await call('listBatches')
  await until('the batch is complete', async () => {
    const { status } = await call('getBatch', { params: { id: batch.id } })
    return status === 'completed'
  })
  await caller.call(t, 'cancelBatch', 409, { params: { id: batch.id } })
  const slow = { ...line, body: { ...chat, max_tokens: 500, ignore_eos: true } }
  const { id: more } = await call('createUserFile', {
    body: form.replace(JSON.stringify(line), JSON.stringify(slow)),
    headers: { 'content-type': 'multipart/form-data; boundary=b' }
  })
  const { id: second } = await call('createBatch', { body: { ...body, input_file_id: more } })
  await call('cancelBatch', { params: { id: second } })
  await call('deleteUserFile', { params: { id } })
})

t.test('the Anthropic API replies as documented', t => callAll(t, 'the Anthropic API'))

t.test('builds, logs and files reply as documented', t => callAll(t, 'builds, logs and files'))

t.test('a followed log is the documented stream', async t => {
  const controller = new AbortController()
  const response = await corral.send(`/api/logs/${DEMO}?follow=1&lines=5`, undefined, {
    signal: controller.signal,
    local: true
  })
  let text = ''
  for await (const chunk of response.body!) {
    text += Buffer.from(chunk).toString()
    if (text.split('\n\n').length > 3) break
  }
  controller.abort()
  const reply = { status: response.status, type: response.headers.get('content-type')!, text }
  t.same(caller.checker.check('getLogs', { ...reply, text: text.slice(0, text.lastIndexOf('\n\n')) }), [])
})

t.test('the audit log, captures and log levels reply as documented', t =>
  callAll(t, 'the audit log, captures and log levels')
)

t.test('conversations of the page reply as documented', t => callAll(t, 'conversations of the page'))

t.test('browser sessions reply as documented', async t => {
  const { address } = await caller.call(t, 'createSessionLink', 200, { body: {} })
  const body = { token: address.split('#open=')[1] }
  const { key } = await caller.call(t, 'createSession', 200, { body })
  await caller.call(t, 'createSession', 410, { body })
  const local = { local: true }
  const session = { local: false, headers: { authorization: `Bearer ${key}` } }
  await caller.call(t, 'whoAmI', 200, session)
  await caller.call(t, 'createSessionLink', 200, { body: {}, ...session })
  const { sessions } = await caller.call(t, 'listSessions', 200, local)
  await caller.call(t, 'endOwnSession', 404)
  await caller.call(t, 'endOwnSession', 200, session)
  await caller.call(t, 'whoAmI', 401, session)
  await caller.call(t, 'endSession', 404, { params: { id: sessions[0].id }, ...local })
  const link = await caller.call(t, 'createSessionLink', 200, { body: { uid: 65534 } })
  await caller.call(t, 'createSession', 403, { body: { token: link.address.split('#open=')[1] } })
  const again = await caller.call(t, 'createSessionLink', 200, { body: {} })
  await caller.call(t, 'createSession', 200, { body: { token: again.address.split('#open=')[1] } })
  const [{ id }] = (await caller.call(t, 'listSessions', 200, local)).sessions
  await caller.call(t, 'endSession', 200, { params: { id }, ...local })
})

// This test comes last, because every request needs a key once there is one.
t.test('a configuration reload replies as documented', t => callAll(t, 'a configuration reload'))

t.test('keys reply as documented', async t => {
  t.match((await callAll(t, 'keys')).key, /^corral_/)
  const wrong = { authorization: 'Bearer wrong' }
  for (let at = 0; at < 200; at++) await caller.ask('listLocalModels', { headers: wrong })
  for (const id of ['listLocalModels', 'listModels', 'anthropicListModels']) {
    await caller.call(t, id, 429, { headers: wrong })
  }
})

t.test("llama-server's routes reply as documented", t => callAll(t, "llama-server's routes"))

t.test("LM Studio's routes reply as documented", t => callAll(t, "LM Studio's routes"))

t.test('every operation has succeeded', async t => {
  const succeeded = ({ operationId }: { operationId: string }) =>
    [...(caller.seen.get(operationId) ?? [])].some(status => status < 300)
  const failed = caller.checker.operations.filter(operation => !succeeded(operation))
  t.same(failed.map(({ operationId }) => operationId).sort(), readFixture('without-success').sort())
})
