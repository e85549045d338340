import t from 'tap'
import type { Role } from '../../../../core/http/roles.ts'
import { DEMO, startCorral, until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { readState } from '../../../support/state-reader.ts'

const OTHER = 'team/other'
const corral = await startCorral(t)
const local = { local: true }
await corral.json('/api/copy', { source: DEMO, destination: OTHER }, local)
const keyless = await readState(corral)

async function keyOf(name: string, role: Role, models?: string[]) {
  const { body } = await corral.json('/api/keys', { name, role, ...(models && { models }) }, local)
  return { headers: { authorization: `Bearer ${body.key}` } }
}
const [operator, user, narrow] = [
  await keyOf('operator', 'operator'),
  await keyOf('user', 'user'),
  await keyOf('narrow', 'user', [OTHER])
]

t.test('each role sees the records that it may see in lists', async t => {
  const states = await Promise.all([operator, user, narrow].map(init => readState(corral, '', init)))
  const [all, some, few] = states as [(typeof states)[0], (typeof states)[0], (typeof states)[0]]
  await until('snapshots', () => states.every(({ events }) => events.length > 0))
  const topicsOf = ({ records }: typeof all) => [...new Set([...records.keys()].map(key => key.split('/')[0]))].sort()
  t.strictSame(topicsOf(some), ['model', 'server'])
  t.strictSame(topicsOf(few), ['model', 'server'])
  t.ok(['build', 'model', 'requests', 'server'].every(topic => topicsOf(all).includes(topic)))
  t.strictSame(each(few.of('model'), 'name'), [OTHER])
  t.equal((await corral.json('/api/load', { model: DEMO }, operator)).status, 200)
  await until('the load is visible', () => some.of('engine')[0]?.state === 'loaded')
  t.equal((await corral.json('/api/stop', { model: DEMO }, operator)).status, 200)
  t.equal((await corral.json('/api/load', { model: OTHER }, operator)).status, 200)
  await until('the load of its own model is visible', () => few.of('engine')[0]?.state === 'loaded')
  t.notMatch(JSON.stringify(few.events), DEMO)
  for (const topic of ['pull', 'memory', 'build', 'requests']) t.strictSame(some.of(topic), [], topic)
  await until('memory is visible', () => all.of('memory').some(({ reserved }) => reserved > 0))

  const foreign = await readState(corral, '', { headers: { ...narrow.headers, 'last-event-id': all.events[0]!.id } })
  await until('a snapshot', () => foreign.events.length > 0)
  t.equal(foreign.events[0]!.event, 'snapshot', 'ids of other views are not accepted')
  await Promise.all([...states, foreign].map(({ leave }) => leave()))
})

t.test('a key is required, and revoking it ends the stream', async t => {
  await until('a snapshot', () => keyless.events.length > 0)
  t.equal(keyless.reply.status, 200, 'the stream was opened before there were keys')
  t.match(await corral.json('/api/events'), { status: 401, body: { code: 'unauthorized' } })
  const [state, other] = [await readState(corral, '', user), await readState(corral, '', operator)]
  await until('a snapshot', () => state.events.length > 0)
  t.equal((await corral.send('/api/keys/user', undefined, { local: true, method: 'DELETE' })).status, 200)
  await state.read
  t.match(await corral.json('/api/events', undefined, user), { status: 401 })
  await corral.json('/api/delete', { model: OTHER }, { ...operator, method: 'DELETE' })
  await until('the other stream continues', () => !other.records.has(`model/${OTHER}`))
  await Promise.all([other.leave(), keyless.leave()])
})
