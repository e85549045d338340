import t from 'tap'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { readState } from '../support/state-reader.ts'

const corral = await startCorral(t)

t.test('first all that there is, as the lists have it', async t => {
  const state = await readState(corral)
  t.equal(state.reply.headers.get('content-type'), 'text/event-stream')
  await until('a snapshot', () => state.events.length > 0)
  const [first] = state.events
  t.equal(first!.event, 'snapshot')
  t.match(first!.id, /^[0-9a-f]{16}-\d+$/)
  const { models } = (await corral.json('/api/tags')).body
  t.strictSame(state.of('model'), [{ ...models[0], pinned: false }])
  t.match(state.records.get('server/server'), { version: String, started_at: String, draining: false })
  t.match(state.records.get('requests/requests'), { total: Number, open: 0 })
  t.match(state.records.get('build/build'), { state: /idle|searching|ready/ })
  t.strictSame([state.of('engine'), state.of('pull')], [[], []])
  await state.leave()
})

t.test('a load and an unload, step by step', async t => {
  const state = await readState(corral)
  t.equal((await corral.json('/api/load', { model: DEMO })).status, 200)
  await until('it is loaded', () => state.of('engine')[0]?.state === 'loaded')
  t.equal(state.states[0], 'loading')
  t.equal(state.states.at(-1), 'loaded')
  const { models, memory } = (await corral.json('/api/ps')).body
  t.strictSame(state.of('engine'), [{ ...models[0], state: 'loaded' }], 'as GET /api/ps has it')
  await until('its memory is counted', () => state.of('memory').some(({ reserved }) => reserved > 0))
  t.strictSame(
    state.of('memory').map(({ pool, reserved }) => ({ pool, reserved })),
    memory.map(({ pool, reserved }: any) => ({ pool, reserved }))
  )
  await corral.json('/api/generate', { model: DEMO, prompt: 'The capital of', stream: false })
  const { generated_tokens } = (await corral.json('/api/ps')).body.models[0]
  t.ok(generated_tokens > 0)
  await until('its tokens are counted', () => state.of('engine')[0].generated_tokens === generated_tokens)
  const last = state.events.filter(({ event }) => event === 'change').at(-1)!
  t.notOk('details' in last.data.set.at(-1).value, 'of a known record only what has changed comes')
  t.equal((await corral.json('/api/stop', { model: DEMO })).status, 200)
  await until('it is gone', () => state.of('engine').length === 0)
  await state.leave()
})

t.test('only some topics', async t => {
  const state = await readState(corral, '?topics=server,memory')
  await until('a snapshot', () => state.events.length > 0)
  t.strictSame([...new Set(state.events[0]!.data.records.map(({ topic }: any) => topic))].sort(), ['memory', 'server'])
  await state.leave()
  t.match(await corral.json('/api/events?topics=everything'), { status: 400, body: { code: 'invalid_request' } })
})
