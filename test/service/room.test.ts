import { join } from 'node:path'
import t from 'tap'
import { writeModelCopy } from '../long/support.ts'
import { begin, CAPITAL_ANSWER, capital, DEMO, endless, startCorral, until } from '../support/corral.ts'

const OTHER = 'test/other'

/** A server with the demo model under two names. All tests share it, and reload it with their settings. */
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
