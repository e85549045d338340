import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { randomEncoder } from '../../../../scripts/random-models.ts'
import { MAIN } from '../../../command-line/command.ts'
import {
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  newKey,
  startCorral,
  until
} from '../../../support/corral.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, largeGguf, MIB } from '../../models/download/support.ts'
import { CLIENTS, call, connectMcp } from './mcp-clients.ts'

const USER_TOOLS = ['chat', 'embed', 'list_models', 'rerank', 'transcribe', 'usage']
const OPERATOR_TOOLS = [...USER_TOOLS, 'doctor', 'load_model', 'pull_model', 'search_models', 'stop_model'].sort()

const shared = startCorral(t)

for (const kind of CLIENTS) {
  for (const stdio of [false, true]) {
    t.test(`${kind} over ${stdio ? 'stdio' : 'HTTP'} lists and calls tools, and reads model cards`, async t => {
      const client = await connectMcp(t, await shared, kind, { stdio })
      t.match(client.getServerVersion(), { name: 'corral', version: /^\d/ })
      const { tools } = await client.listTools()
      t.same(tools.map(({ name }) => name).sort(), OPERATOR_TOOLS)
      t.match(
        tools.find(({ name }) => name === 'stop_model'),
        {
          annotations: { destructiveHint: true, readOnlyHint: false },
          inputSchema: { type: 'object', required: ['model'], properties: { model: { type: 'string' } } }
        }
      )
      t.match(await call(client, 'chat', { model: DEMO, prompt: CAPITAL_QUESTION.content, temperature: 0 }), {
        text: CAPITAL_ANSWER,
        data: { model: DEMO, content: CAPITAL_ANSWER, finish_reason: 'stop', usage: { completion_tokens: Number } },
        failed: false
      })
      t.match(await call(client, 'list_models'), {
        text: `${DEMO}, 4.1 MB, completion, tools, loaded`,
        data: { models: [{ name: DEMO, loaded: true, format: 'gguf' }] }
      })
      t.match(await call(client, 'embed', { model: DEMO, input: ['a', 'b'] }), {
        text: /^2 embeddings with \d+ numbers/
      })
      t.match(await call(client, 'doctor'), { text: /^llama\.cpp: .+ \(ready\)\nGPUs: /, data: { state: 'ready' } })
      t.match(await call(client, 'usage', { by: 'model' }), {
        text: new RegExp(`${DEMO}: \\d+ requests, \\d+ tokens in`)
      })
      t.match(await call(client, 'stop_model', { model: DEMO }), { text: 'The model is unloaded.', failed: false })
      t.match(await call(client, 'load_model', { model: DEMO, num_ctx: 512 }), { data: { status: 'ready' } })

      const { resources } = await client.listResources()
      t.match(resources, [{ uri: `corral://models/${DEMO}`, name: DEMO, mimeType: 'text/markdown' }])
      const { contents } = await client.readResource({ uri: resources[0]!.uri })
      t.match((contents[0] as { text: string }).text, /^# corral\/tiny-chat\n\n- Capabilities: completion, tools\n/)
      t.match(await client.listResourceTemplates(), {
        resourceTemplates: [{ uriTemplate: 'corral://models/{+model}' }]
      })
      for (const uri of ['corral://models/no/such', 'file:///etc/passwd', 'corral://models/../../etc']) {
        await t.rejects(client.readResource({ uri }), { code: -32602 }, uri)
      }
      await client.close()
    })
  }
}

t.test('failures have the code and sentence of the REST route', async t => {
  const corral = await shared
  const client = await connectMcp(t, corral, '2026-07-28')
  const cases: [tool: string, values: object, route: string, fields: object][] = [
    ['chat', { model: 'no/such', prompt: 'x' }, '/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] }],
    ['chat', { model: DEMO }, '/v1/chat/completions', {}],
    ['chat', { model: DEMO, messages: 7 }, '/v1/chat/completions', { messages: 7 }],
    ['rerank', { model: DEMO, query: 'x', documents: ['y'] }, '/v1/rerank', { query: 'x', documents: ['y'] }],
    ['transcribe', { model: DEMO, audio: 'AAAA' }, '/v1/audio/transcriptions', { file: 'AAAA' }],
    ['load_model', { model: [] }, '/api/load', { model: [] }],
    ['stop_model', { model: 'no/such' }, '/api/stop', {}],
    ['pull_model', { model: '../../etc/passwd' }, '/api/pull', { model: '../../etc/passwd', stream: false }]
  ]
  for (const [tool, values, route, fields] of cases) {
    const { body } = await corral.json(route, { ...values, ...fields }, { local: true })
    const { message = body.error, code = body.code } = typeof body.error === 'object' ? body.error : {}
    t.match(await call(client, tool, values), {
      failed: true,
      text: `${message} (${code})`,
      data: { code, error: message }
    })
  }
  t.match(await call(client, 'chat', { model: DEMO, promt: 'x' }), {
    failed: true,
    text: 'chat has no argument "promt". Its arguments: model, prompt, messages, max_tokens, temperature. (invalid_request)'
  })
  t.match(await call(client, 'search_models', { query: { a: 1 } }), { failed: true, data: { code: 'invalid_request' } })
  await t.rejects(client.callTool({ name: 'delete_model' }), { code: -32602, message: /no tool "delete_model"/ })
})

t.test('MCP tools apply the roles, models, limits and audit log of REST', async t => {
  const corral = await startCorral(t)
  const key = await newKey(corral, 'alice', { limits: { requests_per_minute: 2 }, models: ['corral/*'] })
  for (const kind of CLIENTS) {
    const alice = await connectMcp(t, corral, kind, { key })
    t.same((await alice.listTools()).tools.map(({ name }) => name).sort(), USER_TOOLS, 'tools of others are not listed')
    for (const [tool, values] of [
      ['pull_model', { model: 'a/b' }],
      ['stop_model', { model: DEMO }],
      ['doctor', {}],
      ['search_models', { query: 'a' }]
    ] as const) {
      t.match(await call(alice, tool, values), { failed: true, data: { code: 'forbidden_role' } }, tool)
    }
    await t.rejects(connectMcp(t, corral, kind, { key: 'wrong' }), 'an unknown key')
    await t.rejects(connectMcp(t, corral, kind), 'no key')
  }
  const alice = await connectMcp(t, corral, '2026-07-28', { key })
  const ask = () => call(alice, 'chat', { model: DEMO, prompt: 'Hello', max_tokens: 5 })
  t.match([await ask(), await ask()], [{ failed: false }, { failed: false }])
  t.match(await ask(), { failed: true, data: { code: 'rate_limited', error: /"alice"/ } })
  t.match(await call(alice, 'usage'), { data: { usage: [{ name: 'alice', requests: 2 }] } })
  const { entries } = (await corral.json('/api/audit?limit=100', undefined, { local: true })).body
  const hers = entries.filter(({ key }: any) => key === 'alice')
  t.equal(hers.filter(({ operation, status }: any) => operation === 'chat' && status === 200).length, 2)
  t.ok(hers.some(({ operation, code }: any) => operation === 'chat' && code === 'rate_limited'))
  t.ok(hers.some(({ operation, status }: any) => operation === 'pullModel' && status === 403))
  t.notOk(
    entries.some(({ operation, status }: any) => operation === 'mcp' && status === 200),
    'each call has one entry'
  )
})

t.test('a pull reports growing progress, and listening clients hear of the model', async t => {
  const repositories = { 'some/model-GGUF': { files: { 'model-Q8_0.gguf': largeGguf(8 * MIB) } } }
  const hub = await startHubEmulator(t, { repositories, bandwidth: { total: 4 * MIB } })
  const corral = await corralWithHub(t, hub)
  const listener = await connectMcp(t, corral, '2026-07-28')
  let changes = 0
  listener.setNotificationHandler('notifications/resources/list_changed', () => void changes++)
  const { close } = await listener.listen({ resourcesListChanged: true })
  for (const [at, kind] of CLIENTS.entries()) {
    const client = await connectMcp(t, corral, kind)
    t.match(await call(client, 'search_models', { query: 'model' }), { text: /^some\/model-GGUF, / })
    const steps: { progress: number; total?: number; message?: string }[] = []
    const onprogress = (step: (typeof steps)[number]) => void steps.push(step)
    const pulled = await call(client, 'pull_model', { model: 'some/model-GGUF', as: `my/copy${at}` }, { onprogress })
    t.match(pulled, { failed: false, text: /^The model is stored\./, data: { status: 'success' } })
    t.ok(steps.length > 1, `${steps.length} steps`)
    t.ok(
      steps.every(({ progress }, at) => at === 0 || progress > steps[at - 1]!.progress),
      'progress grows'
    )
    t.ok(steps.every(({ progress, total = progress }) => progress <= total))
    t.ok(steps.some(({ message }) => message === 'downloading model-Q8_0.gguf'))
    t.ok((await call(client, 'list_models')).data.models.some(({ name }: any) => name === `my/copy${at}`))
  }
  await until('the listener hears of it', () => changes > 0)
  await close()
  t.equal(await corral.end(), 0)
})

t.test('rerank ranks documents as the REST route does', async t => {
  const corral = await shared
  const path = join(t.testdir(), 'random-reranker.gguf')
  writeFileSync(path, randomEncoder('reranker'))
  const model = 'random/reranker'
  t.match(await corral.json('/api/import', { path, name: model, stream: false }), { status: 200 })
  const asked = { model, query: 'What is the capital?', documents: ['Paris is the capital.', 'A dog sleeps.'] }
  const { results } = (await corral.json('/v1/rerank', asked)).body
  for (const kind of CLIENTS) {
    const ranked = await call(await connectMcp(t, corral, kind), 'rerank', asked)
    t.match(ranked, { failed: false, data: { results } })
    t.equal(ranked.text, results.map((each: any) => `document ${each.index}: ${each.relevance_score}`).join('\n'))
    const best = await call(await connectMcp(t, corral, kind), 'rerank', { ...asked, top_n: 1 })
    t.same(best.data.results, results.slice(0, 1))
  }
})

t.test('the SDK is loaded at the first message', async t => {
  const [sdk] = readdirSync(join(MAIN, '..')).filter(
    name => name.endsWith('.js') && readFileSync(join(MAIN, '..', name), 'utf8').includes('WebStandardStreamableHTTP')
  )
  const loadedBy = async (use: (corral: Corral) => Promise<unknown>) => {
    const folder = t.testdir()
    const corral = await startCorral(t, { env: { NODE_V8_COVERAGE: folder } })
    await use(corral)
    await corral.end()
    const name = readdirSync(folder).find(name => name.includes(`-${corral.process.pid}-`))!
    return JSON.parse(readFileSync(join(folder, name), 'utf8')).result.map(({ url }: { url: string }) =>
      url.split('/').at(-1)
    )
  }
  const without = await loadedBy(corral => corral.json('/api/tags'))
  t.ok(without.includes('main.js'))
  t.notOk(without.includes(sdk))
  t.ok((await loadedBy(corral => corral.json('/mcp', { jsonrpc: '2.0', id: 1, method: 'ping' }))).includes(sdk))
})
