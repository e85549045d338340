import t from 'tap'
import { alive, CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'
import { clientFrom } from '../support/other-client.ts'
import { NEVER_READY, scriptedBuild } from '../support/scripted-build.ts'
import { thorough } from '../support/thorough.ts'

/* Loads that are started and abandoned would waste memory and processors. */

const CONFIG = 'scheduler: { load_grace: 300ms }\ndefaults: { num_ctx: 512, num_parallel: 2, temperature: 0 }'
const body = (options: object) => ({ model: DEMO, messages: [CAPITAL_QUESTION], stream: false, options })
const loading = { model: DEMO, stream: false, options: NEVER_READY }
const scripted = { CORRAL_LLAMA_CPP: scriptedBuild(t) }
const shared = await startCorral(t, { config: CONFIG, env: scripted })
const loads = async () => (await shared.json('/api/ps')).body.loading

t.test('a load ends when all its clients have disconnected, on every API', async t => {
  const client = clientFrom(t, shared, '127.0.0.2')
  const ways: [string, object][] = [
    ['/api/chat', body(NEVER_READY)],
    ['/v1/chat/completions', { ...body({}), ...NEVER_READY, stream: true }],
    ['/v1/embeddings', { model: DEMO, input: 'a', options: NEVER_READY }],
    ['/api/load', loading]
  ]
  for (const [path, request] of ways) {
    const leave = new AbortController()
    const asked = client.ask(path, request, leave.signal).then(
      ({ text }) => text.catch(() => undefined),
      () => undefined
    )
    await until('it is loading', async () => (await loads()).some(({ state }: any) => state === 'loading'))
    leave.abort()
    await asked
    await until(`the load ends: ${path}`, async () => (await loads()).length === 0)
  }
  t.equal((await client.json('/api/chat', body({}))).status, 200, 'the model is available to others')
})

t.test('a client that retries joins the running load', async t => {
  await shared.json('/api/stop', { model: DEMO })
  await shared.reload(CONFIG.replace('300ms', '20s'))
  const client = clientFrom(t, shared, '127.0.0.2')
  const before = shared.log().length
  const begun = () =>
    shared
      .log()
      .slice(before)
      .match(/"loading corral\/tiny-chat"/g)?.length
  for (let attempt = 0; attempt < 3; attempt++) {
    const leave = new AbortController()
    const asked = client.ask('/api/chat', body(NEVER_READY), leave.signal).catch(() => undefined)
    await until('it waits', async () =>
      (await loads()).some(({ queued, state }: any) => queued > 0 && state === 'loading')
    )
    await until('its engine is started', begun)
    leave.abort()
    await asked
    await until('the client has disconnected', async () => (await loads()).every(({ queued }: any) => queued === 0))
  }
  t.equal(begun(), 1, 'one load for all attempts')
  await shared.json('/api/stop', { model: DEMO })
  await shared.reload(CONFIG)
})

t.test('an abandoned reload costs other clients nothing', thorough, async t => {
  const greedy = clientFrom(t, shared, '127.0.0.2')
  const honest = clientFrom(t, shared, '127.0.0.3')
  t.equal((await honest.json('/api/chat', body({}))).status, 200)
  const first = shared.enginePids()
  const leave = new AbortController()
  const asked = greedy.ask('/api/chat', body(NEVER_READY), leave.signal).catch(() => undefined)
  await until('it is reloading', () => first.every(pid => !alive(pid)))
  await until('it is loading', async () => (await loads()).some(({ state }: any) => state === 'loading'))
  const waiting = honest.json('/api/chat', body({}))
  await until('another one waits', async () => (await loads()).some(({ queued }: any) => queued === 2))
  leave.abort()
  await asked
  t.equal((await waiting).status, 200)
})
