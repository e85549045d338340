import t from 'tap'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { alarmOf, loadOf, machine, short } from './support.ts'

const MINUTE = 60_000
const line = { clientId: 'batch', background: true }
const client = { clientId: 'client' }
const oneSlot = { ...DEFAULT_LOAD_OPTIONS, num_parallel: 1 }

/** A machine whose model of four slots was loaded for this many lines of a batch. */
function batch(lines: number, ...given: Parameters<typeof machine>) {
  const m = machine(...given)
  m.request(1, 'a', line)
  const effects = m.send({ type: 'loaded', key: 'a' })
  for (let id = 2; id <= lines; id++) effects.push(...m.request(id, 'a', line))
  return { m, effects }
}

t.test('background requests take all slots but one, in order', t => {
  const { m, effects } = batch(6)
  t.same(short(effects), ['grant 1', 'grant 2', 'grant 3'])
  t.same(short(m.request(10, 'a', client)), ['grant 10'], 'a client finds the free slot')
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), [])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 4'])
  t.end()
})

t.test('clients displace the newest background requests', t => {
  const { m } = batch(6)
  m.request(10, 'a', client)
  t.same(short(m.request(11, 'a', client)), ['revoke 3 queue_full', 'grant 11'])
  t.same(short(m.request(12, 'a', { clientId: 'wide', slots: 2 })), [
    'revoke 2 queue_full',
    'revoke 1 queue_full',
    'grant 12'
  ])
  t.same(short(m.send({ type: 'leave', id: 12, key: 'a' })), ['grant 4'], 'background requests get the remaining slots')
  t.same(
    short(m.request(13, 'a', { clientId: 'wide', slots: 4 })),
    ['revoke 4 queue_full'],
    'none runs while a client waits'
  )
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), [])
  t.same(short(m.send({ type: 'leave', id: 11, key: 'a' })), ['grant 13'])
  t.end()
})

t.test('no background request is granted while a client waits, and max_concurrent counts both', t => {
  const m = machine()
  const two = { maxConcurrent: 2 }
  m.request(1, 'a', { ...client, ...two })
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { clientId: 'other', ...two })
  m.request(3, 'a', { clientId: 'third', ...two })
  t.same(short(m.request(4, 'a', { ...line, ...two })), [])
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 3'])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), [], 'the last slot is left for clients')
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 4'])
  t.end()
})

t.test('a background request gets an engine of one slot after a minute without clients', t => {
  const m = machine()
  m.request(1, 'a', { ...client, defaults: oneSlot })
  m.send({ type: 'loaded', key: 'a' })
  m.send({ type: 'leave', id: 1, key: 'a' })
  const effects = m.request(2, 'a', { ...line, defaults: oneSlot })
  t.same(short(effects), [])
  t.equal(alarmOf(effects), MINUTE)
  t.same(short(m.until(MINUTE)), ['grant 2'])
  t.same(short(m.request(3, 'a', { ...client, defaults: oneSlot })), ['revoke 2 queue_full', 'grant 3'])
  t.end()
})

t.test('background requests do not count for queues and shares', t => {
  const { m } = batch(40, { maxQueue: 2, queuePerKey: 2 })
  t.same(short(m.request(50, 'a', line)), [], 'none is refused')
  for (const id of [60, 61, 62, 63]) m.request(id, 'a', { clientId: 'batch' })
  m.at(MINUTE)
  t.same(short(m.request(64, 'a', { clientId: 'batch' })), [])
  t.same(short(m.request(65, 'a', client)), [], 'requests of the client itself count as usual')
  t.same(short(m.send({ type: 'leave', id: 60, key: 'a' })), ['grant 65'])
  t.end()
})

t.test('background requests evict only models that no client has used', t => {
  const m = machine({ maxLoaded: 1 })
  m.request(1, 'a', client)
  m.send({ type: 'loaded', key: 'a' })
  m.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(m.request(2, 'b', line)), [])
  t.same(short(m.until(5 * MINUTE - 1)), [])
  t.same(short(m.until(5 * MINUTE)), ['unload a'], 'until it has expired')
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load b'])
  m.send({ type: 'loaded', key: 'b' })
  t.same(short(m.request(3, 'c', { clientId: 'another batch', background: true })), [])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'b' })), ['unload b'])
  t.same(short(m.send({ type: 'gone', key: 'b' })), ['load c'])
  t.end()
})

t.test("a client's model replaces one used only in the background, even under its answers or load", t => {
  const { m } = batch(2, { maxLoaded: 1 })
  t.same(short(m.request(10, 'b', client)), ['revoke 2 queue_full', 'revoke 1 queue_full', 'unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load b'])

  const loading = machine({ maxLoaded: 1 })
  t.same(short(loading.request(1, 'a', line)), ['load a'])
  t.same(short(loading.request(10, 'b', client)), ['abort-load a'])
  const stopped = { type: 'load-failed', key: 'a', error: new Error('stopped') as never } as const
  t.same(short(loading.send(stopped)), ['load b'])
  t.same(short(loading.send({ type: 'loaded', key: 'b' })), ['grant 10'])
  t.same(
    short(loading.send({ type: 'leave', id: 10, key: 'b' })),
    [],
    'the background request waits until that model is gone'
  )
  t.same(short(loading.until(5 * MINUTE)), ['unload b'])
  t.same(short(loading.send({ type: 'gone', key: 'b' })), ['load a'])

  const beside = machine({ maxLoaded: 2 })
  beside.request(1, 'a', line)
  t.same(short(beside.request(10, 'b', client)), ['load b'], 'both are loaded if there is room')
  t.end()
})

t.test('clients decide about the options of a load', t => {
  const m = machine({ maxLoaded: 1 })
  m.request(1, 'a', client)
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'b', { ...line, options: { num_ctx: 100_000 } })
  m.request(3, 'b', { ...client, options: { num_ctx: 2048 } })
  m.send({ type: 'leave', id: 1, key: 'a' })
  t.equal(loadOf(m.send({ type: 'gone', key: 'a' }))?.num_ctx, 2048)
  t.same(short(m.send({ type: 'loaded', key: 'b' })), ['grant 3'])
  m.send({ type: 'leave', id: 3, key: 'b' })
  t.same(
    short(m.until(5 * MINUTE - 1)),
    [],
    'a background request with other options does not reload a model that clients use'
  )
  t.same(short(m.until(5 * MINUTE)), ['unload b'])
  t.equal(loadOf(m.send({ type: 'gone', key: 'b' }))?.num_ctx, 100_000)
  t.end()
})

t.test('a model stays loaded between background requests even with a short keep_alive', t => {
  const { m } = batch(1, { keepAlive: 0 })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [])
  m.at(1000)
  t.same(short(m.request(2, 'a', line)), ['grant 2'])
  m.send({ type: 'leave', id: 2, key: 'a' })
  t.same(short(m.until(2999)), [])
  t.same(short(m.until(3000)), ['unload a'])
  t.end()
})

t.test('a background request that yields waits behind clients', t => {
  const { m } = batch(1)
  t.same(short(m.send({ type: 'yield', id: 1, key: 'a' })), ['grant 1'])
  m.request(10, 'a', { ...client, slots: 4 })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [], 'it has already lost its slots')
  t.end()
})
