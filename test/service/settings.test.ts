import { join } from 'node:path'
import t from 'tap'
import { writeModelCopy } from '../long/support.ts'
import {
  begin,
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  capital,
  DEMO,
  endless,
  startCorral,
  until
} from '../support/corral.ts'

const OTHER = 'test/other'

/** A server with the demo model under two names. Tests of settings that need no restart share it, and reload it. */
const corral = await startCorral(t)
const path = join(corral.home, 'other.gguf')
writeModelCopy(path, 1)
t.equal((await corral.json('/api/import', { model: OTHER, path })).status, 200)

t.afterEach(async () => {
  for (const model of [DEMO, OTHER]) await corral.json('/api/stop', { model })
})

async function findState(model: string): Promise<any> {
  const { models, loading } = (await corral.json('/api/ps')).body
  return [...models, ...loading].find(entry => entry.model === model)
}

t.test('a model that cannot fit is refused immediately with the numbers and advice', async t => {
  await corral.reload('scheduler: { memory: 70MiB }')
  for (const path of ['/api/chat', '/v1/chat/completions']) {
    const { status, body } = await corral.json(path, capital(DEMO))
    t.equal(status, 503)
    const { code, message } = body.error.code ? body.error : { code: body.code, message: body.error }
    t.equal(code, 'insufficient_memory')
    t.match(message, /"corral\/tiny-chat".*73 MB/)
    t.match(message, /It would fit with num_ctx \d+/)
  }
  t.same(corral.enginePids(), [], 'no engine was started for it')
})

t.test('preload, pin and groups decide which models stay loaded', async t => {
  const config = `models:
  ${DEMO}: {preload: true, pin: true, groups: [large]}
  ${OTHER}: {groups: [Large]}
  test/absent: {preload: true}
`
  await corral.reload(config)
  const loaded = await until('it is loaded without a request', async () => {
    const state = await findState(DEMO)
    return state?.expires_at ? state : undefined
  })
  t.match(loaded.expires_at, /^2999/)
  const { status, body } = await corral.json('/api/chat', capital(OTHER))
  t.equal(status, 503)
  t.match(body, { code: 'insufficient_memory', error: /together with "corral\/tiny-chat", which is pinned/ })
  t.equal((await corral.json('/api/chat', capital(DEMO))).body.message.content, CAPITAL_ANSWER)
  t.equal((await corral.json('/api/stop', { model: DEMO })).status, 200, 'a user may stop a pinned model')
  t.equal((await corral.json('/api/chat', capital(OTHER))).body.message.content, CAPITAL_ANSWER)
})

t.test('a request waiting for memory names the model in its way, and running answers finish', async t => {
  await corral.reload('scheduler: { max_loaded_models: 1, fair_wait: 100ms, room_timeout: 2s }')
  const running = await begin(corral, '/api/chat', endless(DEMO))
  const late = await corral.json('/api/chat', capital(OTHER))
  t.equal(late.status, 503)
  t.match(late.body, {
    code: 'insufficient_memory',
    error: /No room for model "test\/other" became free within 2.0 s.*"corral\/tiny-chat".*1 running/
  })
  const given = corral.events('/api/load', { model: OTHER, stream: true })
  await until('it waits', async () => (await findState(OTHER))?.state === 'waiting')
  await corral.json('/api/stop', { model: OTHER })
  const failure = { done: true, done_reason: 'error', code: 'model_stopped', errorCode: 503, status: /^error: / }
  t.match((await given).at(-1), { model: OTHER, ...failure })
  const events = corral.events('/api/load', { model: OTHER, stream: true })
  const waiting = await until('it waits', async () => {
    const state = await findState(OTHER)
    return state?.state === 'waiting' ? state : undefined
  })
  t.match(waiting, { status: `waiting for memory used by ${DEMO}`, queued: 1 })
  const behind = corral.json('/api/chat', capital(DEMO))
  t.equal((await findState(DEMO)).running, 1, 'it still runs')
  await running.leave()
  const statuses = (await events).map(event => event.status)
  t.ok(statuses.includes(`waiting for memory used by ${DEMO}`), JSON.stringify(statuses))
  t.equal(statuses.at(-1), 'ready')
  t.equal((await behind).body.message.content, CAPITAL_ANSWER, 'the next request gets its turn too')
})

t.test('max_concurrent limits parallel answers', async t => {
  await corral.reload(`models:\n  ${DEMO}: {max_concurrent: 1}\n`)
  const running = await begin(corral, '/api/chat', endless(DEMO))
  const second = corral.json('/api/chat', capital(DEMO))
  const state = await until('the second request waits', async () => {
    const state = await findState(DEMO)
    return state.queued === 1 ? state : undefined
  })
  t.equal(state.running, 1)
  await running.leave()
  t.equal((await second).body.message.content, CAPITAL_ANSWER)
})

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false }

t.test("a model's section overrides the defaults, and a request overrides both, on both APIs", async t => {
  const options = '{ max_tokens: 5, num_ctx: 512, num_parallel: 2 }'
  await corral.reload(
    `defaults: { temperature: 0, max_tokens: 3 }\nmodels: { Corral/Tiny-Chat: { keep_alive: 1h, options: ${options} } }`
  )
  const native = async (options: object) => (await corral.json('/api/chat', { ...chat, options })).body
  t.match(await native({}), { eval_count: 5, done_reason: 'length' }, 'the model’s section')
  t.match(await native({ max_tokens: 4 }), { eval_count: 4 }, 'the request')
  t.equal((await native({ num_predict: -1 })).message.content, CAPITAL_ANSWER, 'no limit')
  const hosted = async (more: object) => (await corral.json('/v1/chat/completions', { ...chat, ...more })).body.usage
  t.equal((await hosted({})).completion_tokens, 5)
  t.equal((await hosted({ options: { max_tokens: 4 } })).completion_tokens, 4)
  const both = await hosted({ max_tokens: 2, options: { max_tokens: 4 } })
  t.equal(both.completion_tokens, 2, 'the top level takes precedence')
  t.equal((await hosted({ max_completion_tokens: 1 })).completion_tokens, 1)
  const [running] = (await corral.json('/api/ps')).body.models
  t.match(running, { context_length: 512, options: { num_ctx: 512, num_parallel: 2 } })
  t.ok(Date.parse(running.expires_at) - Date.now() > 3_000_000, 'an hour')
})

t.test('keep_alive unloads an idle model, pin keeps it, and num_ctx is clamped to the trained context', async t => {
  await corral.reload('scheduler: { keep_alive: 300ms }')
  await corral.json('/api/chat', chat)
  await until('it is unloaded', async () => (await corral.json('/api/ps')).body.models.length === 0)
  await until('its process has ended', () => corral.enginePids().length === 0)

  await corral.reload(`models: { ${DEMO}: { pin: true } }`)
  await corral.json('/api/chat', { ...chat, keep_alive: 0 })
  const [running] = (await corral.json('/api/ps')).body.models
  t.equal(running.expires_at, '2999-12-31T23:59:59.000Z')

  await corral.json('/api/load', { model: DEMO, options: { num_ctx: 100_000, num_parallel: 1 } })
  t.equal((await corral.json('/api/ps')).body.models[0].context_length, 32_768, 'no more than its training context')
  t.match(corral.log(), /"requested":100000,"effective":32768/, 'the log says so too')
})

t.test(
  'APIs and negotiation can be switched off, and keys are required except for health checks and the page',
  async t => {
    const corral = await startCorral(t, {
      config: 'api-ollama:\n  enabled: false\napi-native:\n  negotiate: false\nsecurity:\n  api_keys: [open-sesame]\n'
    })
    const key = { authorization: 'Bearer open-sesame' }
    t.equal((await corral.send('/api/health')).status, 200)
    for (const path of ['/api/tags', '/v1/models', '/nowhere']) t.equal((await corral.send(path)).status, 401, path)
    t.match((await corral.json('/v1/models')).body, { error: { type: 'authentication_error', code: 'unauthorized' } })
    t.equal((await corral.json('/ollama/api/tags', undefined, { headers: key })).status, 404)
    t.equal((await corral.json('/api/tags', undefined, { headers: { 'x-api-key': 'open-sesame' } })).status, 200)
    const response = await corral.send(
      '/api/chat',
      { ...chat, stream: true },
      { headers: { ...key, accept: 'application/json' } }
    )
    t.equal(response.headers.get('content-type'), 'text/event-stream')
    await response.text()
    t.notMatch(corral.log(), /open-sesame/)
  }
)
