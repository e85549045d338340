import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { checkCommands, corral as command } from '../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { ggufBytes } from '../support/gguf-writer.ts'

const ALIASES = `models:
  ${DEMO}:
    aliases: [gpt-4o, claude-haiku-4-5, text-embedding-3-small, my/helper]
    draft: {model: tiny-chat, max_tokens: 4}
`
const corral = await startCorral(t, { config: ALIASES })
const QUESTION = { messages: [CAPITAL_QUESTION], stream: false, options: { temperature: 0 } }
const SHORT = ['tiny-chat', 'TINY-Chat:latest', 'tiny-chat:f16', 'gpt-4o', 'GPT-4o:latest', `hf.co/${DEMO}`]

t.test('short names and aliases work on every API, and replies repeat the requested name', async t => {
  for (const model of SHORT) {
    for (const prefix of ['/api', '/ollama/api']) {
      const { status, body } = await corral.json(`${prefix}/chat`, { ...QUESTION, model })
      t.match({ status, body }, { status: 200, body: { model, message: { content: CAPITAL_ANSWER } } }, prefix + model)
    }
    for (const prefix of ['/v1', '/ollama/v1']) {
      const { status, body } = await corral.json(`${prefix}/chat/completions`, { ...QUESTION, model })
      t.match({ status, model: body.model }, { status: 200, model }, `${prefix} ${model}`)
    }
  }
  const model = 'gpt-4o'
  for (const [path, body] of readCases<[path: string, body: object][]>('service-cases.yaml', 'alias_requests')) {
    const reply = await corral.json(path, { model, ...body })
    t.match({ status: reply.status, model: reply.body.model }, { status: 200, model }, path)
  }
  for (const [path, body] of [
    ['/v1/messages/count_tokens', { model, messages: [CAPITAL_QUESTION] }],
    ['/v1/tokenize', { model, content: 'Hi' }],
    ['/api/show', { model }],
    ['/api/load', { model }]
  ] as const) {
    t.match(await corral.json(path, body), { status: 200 }, path)
  }
  t.match((await corral.json('/api/show', { model: 'tiny-chat' })).body.details, { name: DEMO })
  t.match(await corral.json('/v1/audio/speech', { model, input: 'x' }), {
    status: 400,
    body: { error: { code: 'unsupported_capability' } }
  })
  const commandLines = corral.enginePids().map(pid => readFileSync(`/proc/${pid}/cmdline`, 'utf8'))
  const drafting = commandLines.filter(text => text.includes('--model-draft'))
  t.not(drafting.length, 0, 'the draft model is found by its short name')
  t.equal(commandLines.length, 2, 'one engine for conversations and one for embeddings, whatever the names')
})

t.test('model lists show the names that clients use', async t => {
  const { data } = (await corral.json('/v1/models')).body
  const others = ['gpt-4o', 'claude-haiku-4-5', 'text-embedding-3-small', 'my/helper']
  const ids = data.map(({ id }: any) => id)
  t.same(ids, [DEMO, ...others])
  t.match(data[1], { owned_by: 'corral', root: DEMO, max_input_tokens: Number })
  t.match((await corral.json('/v1/models?limit=1&after_id=gpt-4o')).body, { first_id: 'claude-haiku-4-5' })
  for (const [asked, id] of [
    ['gpt-4o', 'gpt-4o'],
    ['my/helper', 'my/helper'],
    ['my%2Fhelper', 'my/helper'],
    ['tiny-chat', DEMO],
    ['corral%2Ftiny-chat', DEMO],
    ['tiny-chat:F16', DEMO]
  ] as const) {
    t.match(await corral.json(`/v1/models/${asked}`), { status: 200, body: { id } }, asked)
    t.match(await corral.json(`/anthropic/v1/models/${asked}`), { status: 200 }, asked)
  }
  t.match((await corral.json('/anthropic/v1/models')).body.data[2], { id: 'claude-haiku-4-5' })
  const ollama = (await corral.json('/ollama/api/tags')).body.models
  const names = ollama.map(({ name }: any) => name)
  t.same(
    names,
    [DEMO, ...others].map(name => `${name}:latest`)
  )
  t.match(ollama[1], { model: 'gpt-4o:latest', digest: ollama[0].digest, details: { parent_model: `${DEMO}:latest` } })
  const native = (await corral.json('/api/tags')).body.models
  t.equal(native.length, 1, 'the list of models on disk')
  t.same(native[0].aliases, others)
})

t.test('an unknown model answers 404 with similar names and what to do next', async t => {
  const expected =
    /There is no model "tiny-chatt" here\. Did you mean "corral\/tiny-chat"\? "corral list" .*"corral search/
  const asks = readCases<[path: string, body: object][]>('service-cases.yaml', 'unknown_model_requests')
  for (const [path, body] of asks) {
    const reply = await corral.json(path, { ...body, model: 'tiny-chatt' })
    t.match(reply, { status: 404, body: { code: 'model_not_found', error: expected } }, path)
  }
  const hosted = await corral.json('/v1/chat/completions', { ...QUESTION, model: 'tiny-chatt' })
  t.match(hosted, { status: 404, body: { error: { code: 'model_not_found', param: 'model', message: expected } } })
  const anthropic = await corral.json('/v1/messages', { ...QUESTION, max_tokens: 1, model: 'tiny-chatt' })
  t.match(anthropic, { status: 404, body: { error: { type: 'not_found_error', message: expected } } })
  t.match(await corral.json('/api/logs/tiny-chatt', undefined, { local: true }), {
    status: 404,
    body: { error: expected }
  })
  const remove = await corral.json('/api/delete', { model: 'tiny-chatt' }, { method: 'DELETE' })
  t.match(remove, { status: 404, body: { error: expected } })
  const owned = await corral.json('/api/show', { model: 'coral/tiny-chat-GGUF' })
  t.match(owned.body.error, /Did you mean "corral\/tiny-chat"\?.*"corral pull coral\/tiny-chat-GGUF" downloads it/)
})

t.test('the command line accepts short names and aliases', async t => {
  await checkCommands(t, 'short names', words => command(words, { home: corral.home }))
})

t.test('ambiguous names are refused, and deletions need the whole name', async t => {
  const file = join(t.testdir(), 'weights.gguf')
  const add = async (model: string, seed: number) => {
    writeFileSync(file, ggufBytes({ seed }))
    t.match(await corral.json('/api/import', { model, path: file }, { local: true }), { status: 200 }, model)
  }
  await add('one/twin', 1)
  t.match(await corral.json('/api/show', { model: 'twin' }), { status: 200, body: { details: { name: 'one/twin' } } })
  await add('two/twin:Q8_0', 2)
  const both = {
    status: 404,
    body: { code: 'model_not_found', error: /"twin" is ambiguous: use one\/twin or two\/twin\./ }
  }
  t.match(await corral.json('/api/show', { model: 'twin' }), both, 'as soon as another one is stored')
  t.same((await corral.json('/api/show', { model: 'twin' })).body.candidates, ['one/twin', 'two/twin'])
  t.match(await corral.json('/api/delete', { model: 'twin' }, { method: 'DELETE' }), both)
  t.match(await corral.json('/api/pull', { model: 'twin', stream: false }), both)
  t.match(await corral.json('/api/show', { model: 'twin:Q8_0' }), { body: { details: { name: 'two/twin' } } })
  await add('library/twin', 3)
  const first = 'a model stored without an owner takes precedence'
  t.equal((await corral.json('/api/show', { model: 'twin' })).body.details.name, 'library/twin', first)
  t.match((await corral.json('/ollama/api/show', { model: 'twin' })).body.modelfile, /^FROM twin:latest$/m, first)
  for (const model of ['gpt-4o', 'my/helper']) {
    const refused = await corral.json('/api/delete', { model }, { method: 'DELETE' })
    t.match(refused, { status: 404, body: { error: /only another name of "corral\/tiny-chat"/ } }, model)
  }
  t.match(await corral.json('/api/delete', { model: 'TWIN' }, { method: 'DELETE' }), { status: 200 })
  t.match(await corral.json('/api/delete', { model: 'two/twin' }, { method: 'DELETE' }), { status: 200 })
  t.match(await corral.json('/api/delete', { model: 'twin' }, { method: 'DELETE' }), { status: 200 }, 'the last one')
  t.match(await corral.json('/api/show', { model: 'one/twin' }), { status: 404 })
})

t.test('aliases of models respect the models of a key', async t => {
  const { body } = await corral.json('/api/keys', { name: 'alice', models: ['gpt-4o'] }, { local: true })
  const other = (await corral.json('/api/keys', { name: 'bob', models: ['nobody/*'] }, { local: true })).body
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  const chat = (model: string, key: string) => corral.json('/api/chat', { ...QUESTION, model }, as(key))
  t.match(await chat('gpt-4o', body.key), { status: 200, body: { model: 'gpt-4o' } })
  t.match(await chat('tiny-chat', body.key), { status: 404, body: { code: 'model_not_found' } })
  t.match(await chat(DEMO, body.key), { status: 403, body: { code: 'forbidden_model' } })
  const { body: listed } = await corral.json('/v1/models', undefined, as(body.key))
  const allowed = listed.data.map(({ id }: any) => id)
  t.same(allowed, ['gpt-4o'])
  for (const model of ['tiny-chat', 'gpt-4o', 'tiny-chatt', 'claude-haiku-4-5']) {
    const reply = await chat(model, other.key)
    t.equal(reply.status, 404, model)
    t.notMatch(reply.body.error, /corral\//, 'models that a key may not use stay hidden')
  }
})
