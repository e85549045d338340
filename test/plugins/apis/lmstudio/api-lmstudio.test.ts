import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { randomEncoder } from '../../../../scripts/random-models.ts'
import { readCases } from '../../../support/cases.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, joined, startCorral } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { thorough } from '../../../support/thorough.ts'

const ENCODER = 'team/encoder'
const CASES = readCases('lmstudio')
const file = join(t.testdir(), 'encoder.gguf')
writeFileSync(file, randomEncoder('embedding'))
const corral = await startCorral(t, { config: `models:\n  ${DEMO}:\n    aliases: [helper]\n` })
await corral.json('/api/import', { model: ENCODER, path: file, stream: false }, { local: true })
const local = { local: true }
const keyOf = async (name: string, models: string[]) =>
  (await corral.json('/api/keys', { name, role: 'user', models }, local)).body.key as string
const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }
const FACTS = {
  stats: { tokens_per_second: Number, time_to_first_token: Number, generation_time: Number, stop_reason: 'eosFound' },
  model_info: { arch: 'llama', quant: String, format: 'gguf', context_length: Number },
  runtime: { name: /^llama\.cpp-/, version: String, supported_formats: ['gguf'] }
}

t.test('the LM Studio API lists models with their states', async t => {
  const rows = async () => (await corral.json('/api/v0/models')).body
  const before = await rows()
  t.equal(before.object, 'list')
  t.match(before.data, [
    {
      id: DEMO,
      object: 'model',
      type: 'llm',
      publisher: 'corral',
      arch: 'llama',
      compatibility_type: 'gguf',
      quantization: 'F16',
      state: 'not-loaded',
      max_context_length: Number
    },
    { id: ENCODER, type: 'embeddings', arch: 'bert', publisher: 'team', state: 'not-loaded', max_context_length: 512 },
    { id: 'helper', type: 'llm', state: 'not-loaded' }
  ])
  t.notOk('loaded_context_length' in before.data[0])
  await corral.json('/api/load', { model: DEMO, options: { num_ctx: 1024 } })
  t.match((await rows()).data[0], { state: 'loaded', loaded_context_length: 1024 })
  for (const name of [DEMO, encodeURIComponent(DEMO)]) {
    const { body } = await corral.json(`/api/v0/models/${name}`)
    t.match(body, { id: DEMO, state: 'loaded', loaded_context_length: 1024 }, name)
  }
  t.match((await corral.json('/api/v0/models/helper')).body, { id: 'helper', state: 'loaded' })
  t.match(await corral.json('/api/v0/models/no/such-model'), {
    status: 404,
    body: { error: { code: 'model_not_found', type: 'invalid_request_error', message: String } }
  })
})

t.test('answers of the LM Studio API contain their speed', async t => {
  const { body } = await corral.json('/api/v0/chat/completions', { ...chat, max_tokens: -1 })
  t.equal(body.choices[0].message.content, CAPITAL_ANSWER)
  t.match(body, { object: 'chat.completion', model: DEMO, usage: { completion_tokens: Number }, ...FACTS })
  const { stats, model_info } = body
  t.ok(stats.tokens_per_second > 0 && stats.time_to_first_token > 0 && stats.generation_time > 0)
  t.equal(model_info.context_length, 1024)
  t.notOk('timings' in body)
  t.notOk('stats' in (await corral.json('/v1/chat/completions', chat)).body, '/v1 does not contain it')

  const ends = async (fields: object) =>
    (await corral.json('/api/v0/chat/completions', { ...chat, ...fields })).body.stats.stop_reason
  t.equal(await ends({ stop: [' of'] }), 'stopStringFound')
  t.equal(await ends({ max_tokens: 2 }), 'maxPredictedTokensReached')
  const forced = {
    tools: [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }],
    tool_choice: 'required'
  }
  t.equal(await ends(forced), 'toolCalls')
  const text = { model: DEMO, prompt: 'Count', temperature: 0, ignore_eos: true, max_tokens: -1 }
  t.match((await corral.json('/api/v0/completions', text)).body, {
    object: 'text_completion',
    stats: { stop_reason: 'contextLengthReached' },
    model_info: FACTS.model_info
  })
})

t.test('the last event of a stream contains the speed', async t => {
  for (const stream_options of [{ include_usage: false }, { include_usage: true }]) {
    const events = await corral.events('/api/v0/chat/completions', { ...chat, stream: true, stream_options })
    t.equal(joined(events), CAPITAL_ANSWER)
    t.equal(events.at(-1), '[DONE]')
    t.match(events.at(-2), { object: 'chat.completion.chunk', ...FACTS })
    t.equal(events.filter(event => event.stats).length, 1)
    t.equal(Boolean(events.at(-2).usage), stream_options.include_usage)
  }
  const events = await corral.events('/api/v0/completions', { model: DEMO, prompt: 'A', max_tokens: 2, stream: true })
  t.match(events.at(-2), { object: 'text_completion', runtime: FACTS.runtime })
})

t.test('ttl sets how long a model stays loaded', async t => {
  const began = Date.now()
  const reply = await corral.send('/api/v0/chat/completions', { ...chat, ttl: 7200 })
  t.equal(reply.status, 200)
  t.notOk(reply.headers.get('x-corral-unknown-options'))
  const [running] = (await corral.json('/api/ps')).body.models
  const stays = Date.parse(running.expires_at) - began
  t.ok(stays >= 7_200_000 && stays < 7_800_000, `${stays}`)
  t.match(await corral.json('/api/v0/chat/completions', { ...chat, ttl: 'soon' }), {
    status: 400,
    body: { error: { code: 'invalid_option' } }
  })
})

t.test('the LM Studio API creates embeddings', async t => {
  const { body } = await corral.json('/api/v0/embeddings', { model: ENCODER, input: ['a', 'b'] })
  t.match(body, { object: 'list', model: ENCODER, usage: { prompt_tokens: Number } })
  t.match(body.data[1], { object: 'embedding', index: 1, embedding: [Number] })
})

t.test('the LM Studio API returns errors for invalid requests', async t => {
  const cases: [path: string, body: unknown, status: number, code: string][] = [
    ['/chat/completions', { ...chat, model: 'no/such-model' }, 404, 'model_not_found'],
    ['/chat/completions', { model: DEMO }, 400, 'invalid_request'],
    ['/chat/completions', '{', 400, 'invalid_json'],
    ['/embeddings', { model: DEMO, input: 7 }, 400, 'invalid_request'],
    ['/nothing', {}, 404, 'route_not_found']
  ]
  for (const [path, body, status, code] of cases) {
    t.match(await corral.json(`/api/v0${path}`, body), { status, body: { error: { code, message: String } } }, path)
  }
})

const STATS = {
  input_tokens: Number,
  total_output_tokens: Number,
  reasoning_output_tokens: 0,
  tokens_per_second: Number,
  time_to_first_token_seconds: Number
}
const ask = (fields: object) => corral.json('/api/v1/chat', { model: DEMO, temperature: 0, ...fields })

t.test('v1 lists models with their instances, and loads and unloads them', async t => {
  const rows = async () => (await corral.json('/api/v1/models')).body.models
  const instances = async () => (await rows()).map((row: any) => row.loaded_instances)
  await corral.json('/api/v1/models/unload', { instance_id: DEMO })
  const [demo, encoder, helper] = await rows()
  t.match(demo, {
    type: 'llm',
    publisher: 'corral',
    key: DEMO,
    architecture: 'llama',
    quantization: { name: 'F16', bits_per_weight: Number },
    params_string: /^0\.0\d+B$/,
    loaded_instances: [],
    max_context_length: 32768,
    format: 'gguf',
    capabilities: { vision: false, trained_for_tool_use: true },
    description: null
  })
  t.match(encoder, { type: 'embedding', key: ENCODER, max_context_length: 512, format: 'gguf' })
  t.notOk('capabilities' in encoder || 'architecture' in encoder)
  t.match(helper, { type: 'llm', key: 'helper' })

  const load = { model: 'helper', context_length: 1024, flash_attention: true, echo_load_config: true }
  t.match(await corral.json('/api/v1/models/load', load), {
    status: 200,
    body: {
      type: 'llm',
      instance_id: DEMO,
      status: 'loaded',
      load_time_seconds: Number,
      load_config: { context_length: 1024, parallel: Number }
    }
  })
  const config = { context_length: 1024, parallel: Number }
  t.match(await instances(), [[{ id: DEMO, config }], [], [{ id: 'helper', config }]])
  t.match(await corral.json('/api/v1/models/load', { model: ENCODER }), { status: 200, body: { type: 'embedding' } })
  t.strictSame(await corral.json('/api/v1/models/unload', { instance_id: 'helper' }), {
    status: 200,
    body: { instance_id: 'helper' }
  })
  t.strictSame((await instances())[0], [])
  t.match(await corral.json('/api/v1/models/unload', { instance_id: DEMO }), {
    status: 404,
    body: { error: { type: 'invalid_request', code: 'model_not_loaded' } }
  })
})

t.test('v1 answers and continues stored conversations', async t => {
  const first = await ask({ input: CAPITAL_QUESTION.content, system_prompt: 'You are Leo.' })
  t.match(first, {
    status: 200,
    body: {
      model_instance_id: DEMO,
      output: [{ type: 'message', content: CAPITAL_ANSWER }],
      stats: { ...STATS, model_load_time_seconds: Number },
      response_id: /^resp_/
    }
  })
  const { response_id: id, stats } = first.body
  const part = { type: 'text', content: 'What is 7 + 8?' }
  const second = await ask({ input: [part], previous_response_id: id })
  t.match(second.body.output, [{ type: 'message', content: '7 + 8 = 15.' }])
  t.ok(second.body.stats.input_tokens > stats.input_tokens, 'the model got the whole conversation')
  t.notOk('model_load_time_seconds' in second.body.stats)
  const { body: items } = await corral.json(`/v1/responses/${second.body.response_id}/input_items?order=asc`)
  t.strictSame(each(items.data as any[], 'role'), ['system', 'user', 'assistant', 'user'])

  const file = { type: 'input_file', filename: 'note.txt', file_data: 'data:text/plain;base64,SGVsbG8=' }
  const input = [{ role: 'user', content: [file, { type: 'input_text', text: 'What is 7 + 8?' }] }]
  const shared = { model: DEMO, temperature: 0, max_output_tokens: 20, input, previous_response_id: id }
  const response = (await corral.json('/v1/responses', shared)).body
  t.equal(response.output[0].type, 'message', 'the Responses API continues it, here with a file')
  const third = await ask({ input: CAPITAL_QUESTION.content, previous_response_id: response.id })
  t.match(third.body.output, [{ content: CAPITAL_ANSWER }], 'and the other way round')
  const forgotten = await ask({ input: 'Hi', store: false })
  t.notOk('response_id' in forgotten.body)
  const headers = { authorization: 'Bearer another' }
  t.match(await corral.json('/api/v1/chat', { model: DEMO, input: 'x', previous_response_id: 'resp_x' }, { headers }), {
    status: 404,
    body: { error: { code: 'response_not_found', param: 'previous_response_id' } }
  })
})

t.test('v1 streams its own events', async t => {
  await corral.json('/api/v1/models/unload', { instance_id: DEMO })
  const read = async (fields: object) => {
    const sent = { model: DEMO, temperature: 0, stream: true, input: CAPITAL_QUESTION.content, ...fields }
    const events = await corral.events('/api/v1/chat', sent)
    return { events, kinds: events.map(({ type }) => type).filter((type, at, all) => type !== all[at - 1]) }
  }
  const { events, kinds } = await read({})
  t.strictSame(
    kinds.filter(kind => kind !== 'prompt_processing.progress'),
    CASES.kinds
  )
  const text = events.map(({ type, content }) => (type === 'message.delta' ? content : '')).join('')
  t.equal(text, CAPITAL_ANSWER)
  t.match(events.at(-1).result, {
    model_instance_id: DEMO,
    output: [{ type: 'message', content: CAPITAL_ANSWER }],
    stats: { ...STATS, model_load_time_seconds: Number },
    response_id: /^resp_/
  })
  t.notOk((await read({ store: false })).kinds.includes('model_load.start'), 'the model is loaded')
})

t.test('v1 refuses what it cannot do', async t => {
  for (const [fields, status, error] of CASES.refused) {
    for (const stream of [false, true]) {
      t.match(await ask({ stream, ...fields }), { status, body: { error } }, JSON.stringify(fields))
    }
  }
  t.match(await corral.json('/api/v1/models/download/status/job_x'), {
    status: 404,
    body: { error: { type: 'job_not_found', param: 'job_id' } }
  })
  const integrations = [
    'mcp/playwright',
    { type: 'ephemeral_mcp', server_label: 'huggingface', server_url: 'http://x' }
  ]
  const reply = await corral.send('/api/v1/chat', { model: DEMO, input: 'Hi', reasoning: 'off', integrations })
  t.same([reply.status, reply.headers.get('x-corral-ignored-tools')], [200, 'huggingface, mcp%2Fplaywright'])
})

t.test('a key sees and uses only its own models', async t => {
  const headers = { authorization: `Bearer ${await keyOf('narrow', [ENCODER])}` }
  const { body } = await corral.json('/api/v0/models', undefined, { headers })
  t.strictSame(each(body.data, 'id'), [ENCODER])
  const refused = { status: 403, body: { error: { code: 'forbidden_model' } } }
  t.match(await corral.json(`/api/v0/models/${DEMO}`, undefined, { headers }), refused)
  t.match(await corral.json('/api/v0/chat/completions', chat, { headers }), refused)
  t.match(await corral.json('/api/v1/chat', { model: DEMO, input: 'Hi' }, { headers }), refused)
  t.match(await corral.json('/api/v1/models/load', { model: ENCODER }, { headers }), {
    status: 403,
    body: { error: { code: 'forbidden_role' } }
  })
  const missing = { status: 401, body: { error: { code: 'unauthorized' } } }
  t.match(await corral.json('/api/v0/models'), missing)
  t.match(await corral.json('/api/v0/chat/completions', chat), missing)
})

t.test('the API can be disabled', thorough, async t => {
  const without = await startCorral(t, { config: 'api-lmstudio:\n  enabled: false\n' })
  t.equal((await without.json('/api/v0/models')).status, 404)
})
