import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false }
/** Tests of settings that need no restart share this server. */
const corral = await startCorral(t)

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
