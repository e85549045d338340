import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { importModels, MODELS, writeModels } from '../plugins/apis/openai/media/support.ts'
import { TINY_CHAT } from '../plugins/models/download/support.ts'
import { CAPITAL_QUESTION, DEMO, newFolder, startCorral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { Caller } from './api-document.ts'

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
  config: 'defaults:\n  num_parallel: 1\n  temperature: 0\nweb:\n  conversations: server\n'
})
// Fetched before models are installed, because its examples name installed models.
const document = (await corral.json('/openapi.json')).body
await importModels(corral, await writeModels(t.testdir()))

const caller = new Caller(corral, document)

/**
 * Operations that never succeed, or only with a server of llama.cpp releases or a converter, which other tests have.
 */
const WITHOUT_SUCCESS = [
  // These answer as long as their connection is open. test/plugins/apis/native and test/plugins/apis/llama test them.
  'followState',
  'followCluster',
  'llamaModelEvents',
  'llamaStream',
  'llamaEndStream',
  'llamaInfill',
  'tryModel',
  // There are no nodes. test/plugins/machines/cluster tests these.
  'drainMember',
  'undrainMember',
  'copyFromMember',
  'pullAtMember',
  // These need a hub.
  'llamaDownload',
  'searchHubs',
  'ollamaSearchHubs',
  // These would install gigabytes.
  'installConversionRuntime',
  'ollamaInstallConversionRuntime',
  'installRuntime',
  'upgradeRuntime',
  'useRuntime',
  'deleteRuntime',
  'convertModel',
  'ollamaConvertModel',
  'deleteConversion',
  'ollamaDeleteConversion',
  'pushModel',
  'ollamaPushModel',
  'ollamaMe',
  'ollamaSignout',
  'cancelResponse',
  'createSpeech',
  'createImage',
  'createImageEdit',
  'createImageVariation'
]
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
  for (const id of [
    'root',
    'getHealth',
    'getHealthAsLlamaServer',
    'getLive',
    'getReady',
    'startDrain',
    'getDrain',
    'endDrain',
    'getMetrics',
    'getVersion',
    'listPlugins',
    'getCluster',
    'getDocs',
    'getApiDocument',
    'ollamaRoot',
    'ollamaStatus'
  ]) {
    await caller.call(t, id, 200)
  }
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
  for (const id of ['ollamaMe', 'ollamaSignout']) await caller.call(t, id, 501, { body: {} })
})

t.test('the OpenAI API replies as documented', async t => {
  const call = (id: string, body?: unknown, more: object = {}) =>
    caller.call(t, id, 200, { ...(body === undefined ? {} : { body }), ...more })
  await call('listModels')
  for (const id of ['listModels', 'listLocalModels', 'ollamaListLocalModels']) {
    await caller.call(t, id, 304, { headers: { 'if-none-match': '*' } })
  }
  await call('retrieveModel', undefined, { params: { model: DEMO } })
  await call('createChatCompletion', chat)
  await call('createChatCompletion', { ...chat, stream: true, stream_options: { include_usage: true } })
  await call('createChatCompletion', { model: DEMO, messages: [WEATHER], tools: [TOOL] })
  await call('createChatCompletion', { ...chat, logprobs: true, top_logprobs: 2, max_tokens: 2 })
  await call('createCompletion', { model: DEMO, prompt: 'Hello', max_tokens: 3 })
  await call('createCompletion', { model: DEMO, prompt: 'Hello', max_tokens: 3, stream: true, logprobs: 1 })
  await call('createEmbedding', { model: MODELS.embedding, input: ['a'] })
  await call('createEmbedding', { model: MODELS.embedding, input: 'a', encoding_format: 'base64' })
  const ranking = { model: MODELS.reranker, query: 'a', documents: ['a', 'b'] }
  for (const id of ['rerank', 'rerankToo', 'rerankV2', 'llamaRerank', 'llamaReranking']) await call(id, ranking)
  await call('rerank', { model: MODELS.reranker, query: 'a', texts: ['a', 'b'] })
  const { headers: named } = await corral.send(
    '/v1/chat/completions',
    { model: DEMO, messages: [{ role: 'user', content: 'Hello' }], stream: true },
    { headers: { 'x-corral-resumable': 'true' } }
  )
  const stream = { params: { id: named.get('x-corral-stream-id')! } }
  for (const name of ['Stream', 'NativeStream']) await call(`resume${name}`, undefined, stream)
  await call('ollamaResumeNativeStream', undefined, stream)
  await call('cancelStream', undefined, stream)
  await call('getActivity')
  await call('listTunables', { model: DEMO })
  for (const name of ['cancelNativeStream', 'ollamaCancelNativeStream']) {
    const again = await corral.send(
      '/api/chat',
      { model: DEMO, messages: [{ content: 'Hello' }] },
      { headers: { 'x-corral-resumable': 'true' } }
    )
    await call(name, undefined, { params: { id: again.headers.get('x-corral-stream-id')! } })
  }
  for (const body of [
    { call: 'chat', request: chat },
    { call: 'tokenize', request: { content: 'Hello' } },
    { call: 'load' }
  ]) {
    await call('askForFront', { model: DEMO, ...body })
  }
  await call('describeModels', { models: [DEMO] })
  const { tokens } = await call('tokenize', { model: DEMO, content: 'Hello' })
  await call('detokenize', { model: DEMO, tokens })
  const { id } = await call('createResponse', { model: DEMO, input: 'What is the capital of France?' })
  await call('createResponse', { model: DEMO, input: 'Hello', stream: true })
  await call('countResponseInputTokens', { model: DEMO, input: 'Hello' })
  await call('getResponse', undefined, { params: { id } })
  await call('listResponseInputItems', undefined, { params: { id } })
  await caller.call(t, 'cancelResponse', 400, { params: { id } })
  await call('deleteResponse', undefined, { params: { id } })
  for (const [id, more] of Object.entries({
    createSpeech: { input: 'a', voice: 'b' },
    createImage: { prompt: 'a' },
    createImageEdit: { prompt: 'a' },
    createImageVariation: {}
  })) {
    await caller.call(t, id, 400, { body: { model: DEMO, ...more } })
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
  const heard = { model: MODELS.hearing, file: `data:audio/wav;base64,${sound.toString('base64')}`, max_tokens: 5 }
  for (const id of ['createTranscription', 'createTranslation']) {
    await call(id, heard)
    await call(id, { ...heard, response_format: 'text' })
  }
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

t.test('the Anthropic API replies as documented', async t => {
  for (const mount of ['anthropic', 'anthropicMounted']) {
    const message = { ...chat, max_tokens: 20 }
    await caller.call(t, `${mount}CreateMessage`, 200, { body: message })
    await caller.call(t, `${mount}CreateMessage`, 200, { body: { ...message, stream: true } })
    await caller.call(t, `${mount}CountTokens`, 200, { body: chat })
  }
  await caller.call(t, 'anthropicListModels', 200)
  await caller.call(t, 'anthropicGetModel', 200, { params: { model: DEMO } })
})

t.test('builds, logs and files reply as documented', async t => {
  await caller.call(t, 'listRuntimes', 200)
  await caller.call(t, 'listPromptCache', 200)
  await caller.call(t, 'clearPromptCache', 200)
  const { engines } = await caller.call(t, 'getLogs', 200, { params: { model: DEMO } })
  t.ok(engines.length > 0 && engines[0].lines.length > 0)
  await caller.call(t, 'getLogs', 200, { params: { model: DEMO }, query: '?lines=3' })
  const [owner, name] = DEMO.split('/') as [string, string]
  const { variants } = await caller.call(t, 'listFiles', 200, { params: { owner, name } })
  const { label, revision, files } = variants[0]
  const params = { owner, name, label, revision, path: files[0].path }
  await caller.call(t, 'getFile', 200, { params })
  await caller.call(t, 'getFile', 206, { params, headers: { range: 'bytes=0-9' } })
  await caller.call(t, 'getFile', 416, { params, headers: { range: 'bytes=99999999999-' } })
  await caller.call(t, 'getFile', 304, { params, headers: { 'if-none-match': `"${files[0].sha256}"` } })
  const { ticket } = await caller.call(t, 'issueTicket', 200, { body: { model: DEMO } })
  const { token } = await caller.call(t, 'redeemTicket', 200, { body: { ticket } })
  const [{ sha256 }] = files
  const bearer = { authorization: `Bearer ${token}` }
  await caller.call(t, 'readModelFile', 200, { params: { sha256 }, headers: bearer })
  await caller.call(t, 'readModelFile', 206, { params: { sha256 }, headers: { ...bearer, range: 'bytes=0-9' } })
  await caller.call(t, 'readModelFile', 416, {
    params: { sha256 },
    headers: { ...bearer, range: 'bytes=99999999999-' }
  })
  await caller.call(t, 'readModelFile', 304, {
    params: { sha256 },
    headers: { ...bearer, 'if-none-match': `"${sha256}"` }
  })
})

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

t.test('the audit log, captures and log levels reply as documented', async t => {
  const { entries } = await caller.call(t, 'getAudit', 200, { query: '?limit=20' })
  t.equal(entries.length, 20)
  await caller.call(t, 'getAudit', 400, { query: '?since=soon' })
  const { id } = await caller.call(t, 'startCapture', 200, { body: { model: DEMO, for: '1m' } })
  await caller.call(t, 'startCapture', 404, { body: { key: 'nobody', for: '1m' } })
  await caller.call(t, 'startCapture', 400, { body: { model: DEMO } })
  await caller.call(t, 'chat', 200, { body: { ...chat, stream: false } })
  await caller.call(t, 'listCaptures', 200)
  await caller.call(t, 'getCapture', 200, { params: { id } })
  await caller.call(t, 'stopCapture', 200, { params: { id } })
  await caller.call(t, 'deleteCapture', 200, { params: { id } })
  await caller.call(t, 'getCapture', 404, { params: { id } })
  await caller.call(t, 'getLogLevels', 200)
  await caller.call(t, 'setLogLevel', 200, { body: { part: 'docs', level: 'warn' } })
  await caller.call(t, 'setLogLevel', 400, { body: { part: 'nothing', level: 'warn' } })
})

t.test('conversations of the page reply as documented', async t => {
  const params = { id: 'first' }
  const body = { title: 'France', text: 'Paris', document: { messages: [] } }
  await caller.call(t, 'putConversation', 200, { params, body })
  await caller.call(t, 'putConversation', 409, { params, body })
  await caller.call(t, 'putConversation', 404, { params: { id: 'second' }, body: { ...body, version: 1 } })
  await caller.call(t, 'putConversation', 400, { params: { id: '..%2Fother' }, body })
  await caller.call(t, 'getConversation', 200, { params })
  await caller.call(t, 'listConversations', 200, { query: '?q=paris&limit=1' })
  await caller.call(t, 'deleteConversation', 200, { params })
  await caller.call(t, 'deleteConversation', 404, { params })
  await caller.call(t, 'getConversation', 404, { params })
  await caller.call(t, 'deleteConversations', 200)
})

t.test('browser sessions reply as documented', async t => {
  const { address } = await caller.call(t, 'createSessionLink', 200, { body: {} })
  const body = { token: address.split('#open=')[1] }
  const { key } = await caller.call(t, 'createSession', 200, { body })
  await caller.call(t, 'createSession', 410, { body })
  const session = { local: false, headers: { authorization: `Bearer ${key}` } }
  await caller.call(t, 'whoAmI', 200, session)
  await caller.call(t, 'createSessionLink', 200, { body: {}, ...session })
  const { sessions } = await caller.call(t, 'listSessions', 200)
  await caller.call(t, 'endOwnSession', 404)
  await caller.call(t, 'endOwnSession', 200, session)
  await caller.call(t, 'whoAmI', 401, session)
  await caller.call(t, 'endSession', 404, { params: { id: sessions[0].id } })
  const link = await caller.call(t, 'createSessionLink', 200, { body: { uid: 65534 } })
  await caller.call(t, 'createSession', 403, { body: { token: link.address.split('#open=')[1] } })
  const again = await caller.call(t, 'createSessionLink', 200, { body: {} })
  await caller.call(t, 'createSession', 200, { body: { token: again.address.split('#open=')[1] } })
  const [{ id }] = (await caller.call(t, 'listSessions', 200)).sessions
  await caller.call(t, 'endSession', 200, { params: { id } })
})

// This comes last, because every request needs a key once there is one.
t.test('a configuration reload replies as documented', async t => {
  await caller.call(t, 'reloadConfig', 200)
  const { revision } = await caller.call(t, 'getModelSettings', 200, { query: `?model=${DEMO}` })
  const body = { model: DEMO, settings: { keep_alive: '10m' }, revision }
  await caller.call(t, 'setModelSettings', 200, { body })
  await caller.call(t, 'setModelSettings', 409, { body })
})

t.test('keys reply as documented', async t => {
  const { key } = await caller.call(t, 'createKey', 200, {
    body: { name: 'alice', role: 'operator', limits: { n: 2 } }
  })
  t.match(key, /^corral_/)
  await caller.call(t, 'createKey', 409, { body: { name: 'alice' } })
  await caller.call(t, 'createKey', 400, { body: { name: 'two words' } })
  await caller.call(t, 'listKeys', 200)
  await caller.call(t, 'listKeys', 401, { local: false })
  await caller.call(t, 'listKeys', 403, { local: false, headers: { authorization: `Bearer ${key}` } })
  const operator = { headers: { authorization: `Bearer ${key}` } }
  await caller.call(t, 'getUsage', 200, { query: '?by=day&since=7d', ...operator })
  await caller.call(t, 'getUsage', 400, { query: '?since=lately', ...operator })
  await caller.call(t, 'getUsage', 401, { local: false })
  await caller.call(t, 'whoAmI', 200, operator)
  await caller.call(t, 'whoAmI', 401, { local: false })
  await caller.call(t, 'rotateKey', 200, { params: { name: 'alice' } })
  await caller.call(t, 'rotateKey', 404, { params: { name: 'bob' } })
  await caller.call(t, 'revokeKey', 200, { params: { name: 'alice' } })
  await caller.call(t, 'revokeKey', 404, { params: { name: 'alice' } })
  const wrong = { authorization: 'Bearer wrong' }
  for (let at = 0; at < 200; at++) await caller.ask('listLocalModels', { headers: wrong })
  for (const id of ['listLocalModels', 'listModels', 'anthropicListModels']) {
    await caller.call(t, id, 429, { headers: wrong })
  }
})

t.test("llama-server's routes reply as documented", async t => {
  const call = (id: string, body?: unknown, more: object = {}) =>
    caller.call(t, id, 200, { local: true, ...(body === undefined ? {} : { body }), ...more })
  const model = DEMO
  const messages = [{ role: 'user', content: 'Hello' }]
  for (const id of ['getHealthOfV1', 'llamaTools', 'llamaModels', 'llamaProps', 'llamaSlots']) await call(id)
  for (const id of ['llamaCompletion', 'llamaCompletions']) {
    await call(id, { model, prompt: 'Hello', n_predict: 3 })
    await call(id, { model, prompt: 'Hello', n_predict: 3, stream: true })
  }
  for (const id of ['llamaChat', 'llamaChatTokens', 'llamaPrompt', 'countChatTokens', 'showPrompt']) {
    await call(id, { model, messages })
  }
  await call('controlChatCompletion', { model, id: 'none', action: 'reasoning_end' })
  await call('llamaResponse', { model, input: 'Hello' })
  await call('llamaTokenize', { model, content: 'Hello' })
  await call('llamaDetokenize', { model, tokens: [5] })
  for (const id of ['llamaEmbedding', 'llamaEmbeddings']) await call(id, { model, content: 'Hello' })
  await call('llamaLookUpStreams', { conversation_ids: ['none'] })
  await call('llamaUnload', { model })
  await call('llamaLoad', { model })
  await call('copyModel', { source: model, destination: 'me/deleted' })
  await call('llamaDelete', undefined, { query: '?model=me/deleted' })
})

t.test("LM Studio's routes reply as documented", async t => {
  const call = (id: string, more: object = {}) => caller.call(t, id, 200, { local: true, ...more })
  const model = DEMO
  const messages = [{ role: 'user', content: 'Hi' }]
  await call('lmStudioModels')
  await call('lmStudioModel', { params: { model } })
  for (const stream of [false, true]) {
    await call('lmStudioChat', { body: { model, messages, stream } })
    await call('lmStudioCompletion', { body: { model, prompt: 'Hi', max_tokens: 3, stream } })
  }
  await call('lmStudioEmbeddings', { body: { model, input: 'Hi' } })
})

t.test('every operation has succeeded', async t => {
  const succeeded = ({ operationId }: { operationId: string }) =>
    [...(caller.seen.get(operationId) ?? [])].some(status => status < 300)
  const failed = caller.checker.operations.filter(operation => !succeeded(operation))
  t.same(failed.map(({ operationId }) => operationId).sort(), [...WITHOUT_SUCCESS].sort())
})
