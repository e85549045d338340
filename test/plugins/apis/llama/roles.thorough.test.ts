import t from 'tap'
import { DEMO, startCorral, until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { follow } from './feed.ts'

const OTHER = 'team/other'
const BROKEN = 'team/broken'
const corral = await startCorral(t, {
  config: `models:\n  ${BROKEN}:\n    arguments: ["--no-such-flag"]\n  ${DEMO}:\n    aliases: [helper]\n`
})
const local = { local: true }
for (const destination of [OTHER, BROKEN]) {
  await corral.json('/api/copy', { source: DEMO, destination }, local)
}

async function keyOf(name: string, role: string, models?: string[]): Promise<{ headers: Record<string, string> }> {
  const { body } = await corral.json('/api/keys', { name, role, ...(models && { models }) }, local)
  return { headers: { authorization: `Bearer ${body.key}` } }
}
const user = await keyOf('user', 'user')
const narrow = await keyOf('narrow', 'user', [OTHER])
const operator = await keyOf('operator', 'operator')

async function eventsFor({ headers }: { headers: Record<string, string> }) {
  const { events, leave } = await follow(corral, headers)
  t.teardown(leave)
  return events
}
const failed = (code: number, corral_code: string) => ({ status: code, body: { error: { code, corral_code } } })

t.test('loads and unloads require an operator, and rerouted requests the role of their target', async t => {
  for (const path of ['/models/load', '/models/unload', '/models']) {
    t.match(await corral.json(path, { model: DEMO }, user), failed(403, 'forbidden_role'), path)
  }
  const remove = { ...user, method: 'DELETE' }
  t.match(await corral.json(`/models?model=${DEMO}`, undefined, remove), failed(403, 'forbidden_role'))
  for (const path of ['/models', '/props', '/slots', '/models/sse', '/tools']) {
    t.match(await corral.json(path), failed(401, 'unauthorized'), path)
  }
  for (const path of ['/chat/completions', '/tokenize', '/completion', '/rerank']) {
    t.match(await corral.json(path, { model: DEMO }), failed(401, 'unauthorized'), path)
  }
  t.equal((await corral.json('/health')).status, 200)
})

t.test('the llama-server API hides models that the key may not use', async t => {
  const [seen, all] = [await eventsFor(narrow), await eventsFor(operator)]
  t.match(await corral.json('/models/load', { model: 'helper' }, operator), { status: 200 })
  const states = (events: any[], model: string) =>
    events.filter(event => event.model === model).map(({ data }) => data.status)
  await until('the feed reports the load', () => states(all, DEMO).includes('loaded'))
  t.ok(states(all, 'helper').includes('loaded'), 'the alias is listed too')
  t.strictSame(seen, [])
  t.strictSame(each((await corral.json('/models', undefined, narrow)).body.data, 'id'), [OTHER])
  t.strictSame((await corral.json('/slots', undefined, narrow)).body, [])
  t.ok((await corral.json('/slots', undefined, user)).body.length > 0)
  for (const path of [`/slots?model=${DEMO}`, `/props?model=${DEMO}`]) {
    t.match(await corral.json(path, undefined, narrow), failed(403, 'forbidden_model'), path)
  }
  t.match(await corral.json('/completion', { model: DEMO, prompt: 'a' }, narrow), failed(403, 'forbidden_model'))
  const rows = (await corral.json('/models', undefined, user)).body.data
  t.match(
    rows.find(({ id }: any) => id === DEMO),
    { aliases: ['helper'], status: { value: 'loaded' } }
  )
  t.match(
    rows.find(({ id }: any) => id === 'helper'),
    { aliases: [], status: { value: 'loaded' }, root: DEMO }
  )
  t.match(await corral.json('/models/unload', { model: 'helper' }, operator), { status: 200 })
})

t.test('a failed load is reported and remains in the list', async t => {
  const events = await eventsFor(operator)
  t.match(await corral.json('/models/load', { model: BROKEN }, operator), { status: 200, body: { success: true } })
  const own = () => events.filter(({ model }) => model === BROKEN).map(({ data }) => data)
  await until('the feed reports the failure', () => own().some(({ exit_code }) => exit_code === 1))
  t.match(own().at(-1), { status: 'unloaded', exit_code: 1, reason: /team\/broken/ })
  const { body } = await corral.json(`/v1/models/${BROKEN}`, undefined, user)
  t.match(body.status, { value: 'unloaded', failed: true, exit_code: 1 })
})

t.test('a conversation is visible only to its owner', async t => {
  const id = 'a1b2::tiny'
  const body = { model: DEMO, messages: [{ role: 'user', content: 'Hi' }], stream: true }
  const init = { headers: { ...user.headers, 'x-conversation-id': id } }
  const whole = await (await corral.send('/v1/chat/completions', body, init)).text()
  const query = `/v1/stream?conv_id=${encodeURIComponent(id)}`
  t.match(await corral.json(query, undefined, operator), failed(404, 'stream_not_found'))
  t.strictSame((await corral.json('/v1/streams/lookup', { conversation_ids: [id] }, operator)).body, [])
  t.equal((await corral.send(query, undefined, { ...operator, method: 'DELETE' })).status, 204)
  t.equal(await (await corral.send(query, undefined, user)).text(), whole)
})
