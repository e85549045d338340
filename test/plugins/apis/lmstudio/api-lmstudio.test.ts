import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { randomEncoder } from '../../../../scripts/random-models.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, joined, startCorral } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { thorough } from '../../../support/thorough.ts'

const ENCODER = 'team/encoder'
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

t.test('lists models with their states', async t => {
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

t.test('answers contain their speed', async t => {
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

t.test('creates embeddings', async t => {
  const { body } = await corral.json('/api/v0/embeddings', { model: ENCODER, input: ['a', 'b'] })
  t.match(body, { object: 'list', model: ENCODER, usage: { prompt_tokens: Number } })
  t.match(body.data[1], { object: 'embedding', index: 1, embedding: [Number] })
})

t.test('returns errors for invalid requests', async t => {
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

t.test('a key sees and uses only its own models', async t => {
  const headers = { authorization: `Bearer ${await keyOf('narrow', [ENCODER])}` }
  const { body } = await corral.json('/api/v0/models', undefined, { headers })
  t.strictSame(each(body.data, 'id'), [ENCODER])
  const refused = { status: 403, body: { error: { code: 'forbidden_model' } } }
  t.match(await corral.json(`/api/v0/models/${DEMO}`, undefined, { headers }), refused)
  t.match(await corral.json('/api/v0/chat/completions', chat, { headers }), refused)
  const missing = { status: 401, body: { error: { code: 'unauthorized' } } }
  t.match(await corral.json('/api/v0/models'), missing)
  t.match(await corral.json('/api/v0/chat/completions', chat), missing)
})

t.test('the API can be disabled', thorough, async t => {
  const without = await startCorral(t, { config: 'api-lmstudio:\n  enabled: false\n' })
  t.equal((await without.json('/api/v0/models')).status, 404)
})
