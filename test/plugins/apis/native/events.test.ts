import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import type { Role } from '../../../../core/http/roles.ts'
import { type Corral, DEMO, type SendOptions, startCorral, until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { newFolder } from '../../../support/folder.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { readState } from '../../../support/state-reader.ts'
import { thorough } from '../../../support/thorough.ts'
import { TINY_CHAT } from '../../models/download/support.ts'

const PULLED = 'test/tiny-GGUF'
const hub = await startHubEmulator(t, {
  repositories: { [PULLED]: { files: { 'tiny-F16.gguf': readFileSync(TINY_CHAT) } } },
  bandwidth: { total: 1024 * 1024 }
})
const home = newFolder(t)
const options = {
  home,
  env: { HF_ENDPOINT: hub.url, HF_HOME: join(home, 'hf'), HF_TOKEN: '', HF_HUB_OFFLINE: '' },
  config: `models:\n  ${DEMO}:\n    aliases: [helper]\n    pin: true\n`
}
const root = t
const corral = await startCorral(t, options)
/** The server of the last tests, with keys. */
let next: Corral
const [owner = '', name = ''] = DEMO.split('/')

t.test('the feed starts with a snapshot that matches the lists', async t => {
  const state = await readState(corral)
  t.equal(state.reply.headers.get('content-type'), 'text/event-stream')
  await until('a snapshot', () => state.events.length > 0)
  const [first] = state.events
  t.equal(first!.event, 'snapshot')
  t.match(first!.id, /^[0-9a-f]{16}-\d+$/)
  const { models } = (await corral.json('/api/tags')).body
  t.strictSame(state.of('model'), [{ ...models[0], aliases: ['helper'], pinned: true }])
  t.match(state.records.get('server/server'), { version: String, started_at: String, draining: false })
  t.match(state.records.get('requests/requests'), { total: Number, open: 0 })
  t.match(state.records.get('build/build'), { state: /idle|searching|ready/ })
  t.strictSame([state.of('engine'), state.of('pull')], [[], []])
  await state.leave()
})

t.test('a configuration reload updates pinned models', async t => {
  const state = await readState(corral)
  await until('a snapshot', () => state.of('model').length > 0)
  for (const pin of [false, true]) {
    corral.configure(options.config.replace('true', String(pin)))
    t.equal((await corral.json('/api/reload', {}, { local: true })).status, 200)
    await until(`pinned: ${pin}`, () => state.of('model')[0]?.pinned === pin)
  }
  await state.leave()
})

t.test('the feed reports the steps of a load and an unload', async t => {
  const state = await readState(corral)
  t.equal((await corral.json('/api/load', { model: DEMO })).status, 200)
  await until('the model is loaded', () => state.of('engine')[0]?.state === 'loaded')
  // A quick load may skip steps between two polls.
  const steps = ['queued', 'loading', 'loaded']
  const inOrder = state.states.toSorted((a, b) => steps.indexOf(a) - steps.indexOf(b))
  t.same(state.states, inOrder, 'the steps are in order')
  t.ok(state.states.every(step => steps.includes(step)))
  const { models, memory } = (await corral.json('/api/ps')).body
  t.strictSame(state.of('engine'), [{ ...models[0], state: 'loaded' }], 'the record matches GET /api/ps')
  await until('its memory is reported', () => state.of('memory').some(({ reserved }) => reserved > 0))
  const reserved = (pools: any[]) => pools.map(({ pool, reserved }) => ({ pool, reserved }))
  t.strictSame(reserved(state.of('memory')), reserved(memory))
  await corral.json('/api/generate', { model: DEMO, prompt: 'The capital of', stream: false })
  const { generated_tokens } = (await corral.json('/api/ps')).body.models[0]
  t.ok(generated_tokens > 0)
  await until('its tokens are counted', () => state.of('engine')[0].generated_tokens === generated_tokens)
  const patches = state.events.filter(({ event }) => event === 'change').flatMap(({ data }) => data.set)
  const tokens = patches.findLast(({ value }) => value.generated_tokens !== undefined)
  t.notOk('details' in tokens.value, 'changes contain only the changed fields')
  t.equal((await corral.json('/api/stop', { model: DEMO })).status, 200)
  await until('the engine is removed', () => state.of('engine').length === 0)
  await state.leave()
})

t.test('a failed load has a reason until a load succeeds', async t => {
  await corral.json('/api/copy', { source: DEMO, destination: 'team/broken' })
  const state = await readState(corral, '?topics=model,engine')
  t.teardown(state.leave)
  const own = () => state.records.get('model/team/broken')
  await until('the model is listed', own)
  const configure = (section: string) => corral.reload(`${options.config}${section}`)
  await configure('  team/broken:\n    arguments: ["--no-such-flag"]\n')
  await corral.json('/api/load', { model: 'team/broken' })
  await until('the load failed', () => own().failure)
  t.match(own().failure, { code: 'load_failed', message: /team\/broken/ })
  await configure('')
  t.equal((await corral.json('/api/load', { model: 'team/broken' })).status, 200)
  await until('the failure is cleared', () => own().failure === undefined)
  await corral.json('/api/delete', { model: 'team/broken' }, { method: 'DELETE' })
  await until('the model is deleted', () => own() === undefined && state.of('engine').length === 0)
})

t.test('the feed reports a pull, its model and the deletion', async t => {
  const state = await readState(corral)
  await corral.json('/api/pull', { model: PULLED, detach: true })
  await until('the model is stored', () => state.records.has(`model/${PULLED}`) && state.of('pull').length === 0)
  const pulls = state.events.flatMap(({ data }) => data.set ?? []).filter(({ topic }: any) => topic === 'pull')
  t.match(pulls[0].value, { model: `${PULLED}:F16`, state: 'downloading', total: Number, files: Array })
  const progress = pulls.flatMap(({ value }: any) => value.completed ?? [])
  t.ok(progress.length > 2, `${progress.length} steps`)
  t.strictSame(
    progress,
    [...progress].sort((a, b) => a - b)
  )
  await corral.json('/api/delete', { model: PULLED }, { method: 'DELETE' })
  await until('the model is deleted', () => !state.records.has(`model/${PULLED}`))
  await state.leave()
})

t.test('the feed reports draining, and a stream resumes where it ended', async t => {
  const whole = await readState(corral)
  const cut = await readState(corral)
  await corral.json('/api/drain', {}, { local: true })
  await until('draining is reported', () => cut.records.get('server/server')?.draining)
  await cut.leave()
  await corral.json('/api/copy', { source: DEMO, destination: 'team/copy' })
  await until('the copy is listed', () => whole.records.has('model/team/copy'))
  await corral.send('/api/drain', undefined, { local: true, method: 'DELETE' })
  await until('the end of draining is reported', () => whole.records.get('server/server').draining === false)
  const again = await readState(corral, '', { headers: { 'last-event-id': cut.lastId() } })
  await until('the stream caught up', () => again.events.length > 0 && again.lastId() === whole.lastId())
  t.ok(again.events.every(({ event }) => event === 'change'))
  t.strictSame(
    [...cut.events, ...again.events].map(({ id }) => id),
    whole.events.map(({ id }) => id),
    'no event is lost or duplicated'
  )
  await Promise.all([whole.leave(), again.leave()])
})

t.test('a stalled reader does not delay others', thorough, async t => {
  const { hostname, port } = new URL(corral.url)
  const stalled = connect(Number(port), hostname).pause()
  t.teardown(() => stalled.destroy())
  stalled.write(`GET /api/events HTTP/1.1\r\nhost: ${hostname}:${port}\r\n\r\n`)
  const state = await readState(corral)
  await corral.json('/api/delete', { model: 'team/copy' }, { method: 'DELETE' })
  await until(
    'the other stream receives the change',
    () => state.events.length > 0 && !state.records.has('model/team/copy')
  )
  await state.leave()
})

t.test('the feed refuses unknown topics, HEAD and too many streams', async t => {
  t.match(await corral.json('/api/events?topics=everything'), { status: 400, body: { code: 'invalid_request' } })
  t.equal((await corral.send('/api/events', undefined, { method: 'HEAD' })).status, 405)
  const some = await readState(corral, '?topics=server,memory')
  await until('a snapshot', () => some.events.length > 0)
  const topics = some.events[0]!.data.records.map(({ topic }: any) => topic)
  t.strictSame([...new Set(topics)].sort(), ['memory', 'server'])
  const more = await Promise.all(Array.from({ length: 15 }, () => readState(corral, '?topics=server')))
  t.match(await corral.json('/api/events'), { status: 429, body: { code: 'rate_limited' } })
  await Promise.all([some, ...more].map(({ leave }) => leave()))
  await until('another stream is accepted', async () => {
    const next = await readState(corral)
    await next.leave()
    return next.reply.status === 200
  })
})

t.test('a restarted server sends a new snapshot', async t => {
  const before = await readState(corral)
  await until('a snapshot', () => before.events.length > 0)
  await corral.end()
  await before.read
  next = await startCorral(root, options)
  const after = await readState(next, '', { headers: { 'last-event-id': before.lastId() } })
  await until('a snapshot', () => after.events.length > 0)
  t.equal(after.events[0]!.event, 'snapshot')
  t.match(after.of('model'), [{ name: `${owner}/${name}` }])
  await after.leave()
})

const OTHER = 'team/other'
const local = { local: true }
let keyless!: Awaited<ReturnType<typeof readState>>
let operator!: SendOptions
let user!: SendOptions

async function keyOf(name: string, role: Role, models?: string[]) {
  const { body } = await next.json('/api/keys', { name, role, ...(models && { models }) }, local)
  return { headers: { authorization: `Bearer ${body.key}` } }
}

t.test('each role sees the records that it may see in lists', async t => {
  await next.json('/api/copy', { source: DEMO, destination: OTHER }, local)
  keyless = await readState(next)
  operator = await keyOf('operator', 'operator')
  user = await keyOf('user', 'user')
  const narrow = await keyOf('narrow', 'user', [OTHER])
  const states = await Promise.all([operator, user, narrow].map(init => readState(next, '', init)))
  const [all, some, few] = states as [(typeof states)[0], (typeof states)[0], (typeof states)[0]]
  await until('snapshots', () => states.every(({ events }) => events.length > 0))
  const topicsOf = ({ records }: typeof all) => [...new Set([...records.keys()].map(key => key.split('/')[0]))].sort()
  t.strictSame(topicsOf(some), ['model', 'server'])
  t.strictSame(topicsOf(few), ['model', 'server'])
  t.ok(['build', 'model', 'requests', 'server'].every(topic => topicsOf(all).includes(topic)))
  t.strictSame(each(few.of('model'), 'name'), [OTHER])
  t.equal((await next.json('/api/load', { model: DEMO }, operator)).status, 200)
  await until('the load is visible', () => some.of('engine')[0]?.state === 'loaded')
  t.equal((await next.json('/api/stop', { model: DEMO }, operator)).status, 200)
  t.equal((await next.json('/api/load', { model: OTHER }, operator)).status, 200)
  await until('the load of its own model is visible', () => few.of('engine')[0]?.state === 'loaded')
  t.notMatch(JSON.stringify(few.events), DEMO)
  for (const topic of ['pull', 'memory', 'build', 'requests']) t.strictSame(some.of(topic), [], topic)
  await until('memory is visible', () => all.of('memory').some(({ reserved }) => reserved > 0))

  const foreign = await readState(next, '', { headers: { ...narrow.headers, 'last-event-id': all.events[0]!.id } })
  await until('a snapshot', () => foreign.events.length > 0)
  t.equal(foreign.events[0]!.event, 'snapshot', 'ids of other views are not accepted')
  await Promise.all([...states, foreign].map(({ leave }) => leave()))
})

t.test('a key is required, and revoking it ends the stream', async t => {
  await until('a snapshot', () => keyless.events.length > 0)
  t.equal(keyless.reply.status, 200, 'the stream was opened before there were keys')
  t.match(await next.json('/api/events'), { status: 401, body: { code: 'unauthorized' } })
  const [state, other] = [await readState(next, '', user), await readState(next, '', operator)]
  await until('a snapshot', () => state.events.length > 0)
  t.equal((await next.send('/api/keys/user', undefined, { local: true, method: 'DELETE' })).status, 200)
  await state.read
  t.match(await next.json('/api/events', undefined, user), { status: 401 })
  await next.json('/api/delete', { model: OTHER }, { ...operator, method: 'DELETE' })
  await until('the other stream continues', () => !other.records.has(`model/${OTHER}`))
  await Promise.all([other.leave(), keyless.leave()])
})
