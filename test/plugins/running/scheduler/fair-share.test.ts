import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { alarmOf, errorOf, loadOf, machine, short } from './support.ts'

const MINUTE = 60_000
const greedy = { clientId: 'greedy' }
const honest = { clientId: 'honest' }
const oneSlot = { ...DEFAULT_LOAD_OPTIONS, num_parallel: 1 }

/** A machine with a loaded model of four slots, and so many requests of one client. */
function crowded(requests: number, limits: Parameters<typeof machine>[0] = {}) {
  const m = machine(limits)
  m.request(1, 'a', greedy)
  m.send({ type: 'loaded', key: 'a' })
  for (let id = 2; id <= requests; id++) m.request(id, 'a', greedy)
  return m
}

t.test('a client with many requests waits behind itself', t => {
  const m = crowded(500)
  m.request(901, 'a', honest)
  m.request(902, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 901'])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 902'], 'as long as it has fewer slots')
  m.request(903, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 5'], 'order of arrival within one client')
  t.same(short(m.send({ type: 'leave', id: 901, key: 'a' })), ['grant 903'])
  t.end()
})

t.test('where clients have as many slots, the one that has had less time is next', t => {
  const m = machine()
  const one = { defaults: oneSlot }
  m.request(1, 'a', { ...greedy, ...one })
  m.send({ type: 'loaded', key: 'a' })
  for (const id of [2, 3]) m.request(id, 'a', { ...greedy, ...one })
  for (const id of [11, 12, 13]) m.request(id, 'a', { ...honest, ...one })
  m.at(10_000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 11'])
  m.at(11_000)
  t.same(short(m.send({ type: 'leave', id: 11, key: 'a' })), ['grant 12'], 'ten seconds of one weigh more than one')
  m.at(12_000)
  t.same(short(m.send({ type: 'leave', id: 12, key: 'a' })), ['grant 13'])
  m.at(23_000)
  t.same(short(m.send({ type: 'leave', id: 13, key: 'a' })), ['grant 2'])
  t.end()
})

t.test('what a client took while nobody else wanted it is not held against it', t => {
  const m = machine()
  const one = { defaults: oneSlot }
  m.request(1, 'a', { ...greedy, ...one })
  m.send({ type: 'loaded', key: 'a' })
  m.at(60 * MINUTE)
  m.request(11, 'a', { ...honest, ...one })
  m.request(12, 'a', { ...honest, ...one })
  m.request(2, 'a', { ...greedy, ...one })
  m.at(60 * MINUTE + 1)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 11'])
  m.at(61 * MINUTE)
  t.same(short(m.send({ type: 'leave', id: 11, key: 'a' })), ['grant 2'])
  t.end()
})

t.test('nobody overtakes a request for several slots once some are free, and they count as its own', t => {
  const m = crowded(6)
  m.request(10, 'a', { clientId: 'wide', slots: 3 })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [])
  m.request(11, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), [], 'not by one who comes later either')
  m.at(10_000)
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 10'])
  m.at(10_001)
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), ['grant 11', 'grant 5'])
  t.equal(m.state.engines.get('a')!.clients.get('wide')!.used, 3 * 10_001)
  t.end()
})

t.test('the last slot is left free for a client that was here lately', t => {
  const m = crowded(3)
  m.request(10, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), [])
  const effects = m.request(4, 'a', greedy)
  t.same(short(effects), [], 'it may be back any moment')
  t.equal(alarmOf(effects), MINUTE)
  t.same(short(m.request(11, 'a', honest)), ['grant 11'])
  m.at(1000)
  m.send({ type: 'leave', id: 11, key: 'a' })
  t.same(short(m.until(MINUTE + 999)), [])
  t.same(short(m.until(MINUTE + 1000)), ['grant 4'], 'and is not waited for any longer')

  const wide = crowded(1)
  wide.request(10, 'a', honest)
  wide.send({ type: 'leave', id: 10, key: 'a' })
  wide.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(wide.request(2, 'a', { ...greedy, slots: 4 })), ['grant 2'], 'a request for all slots gets them')
  t.end()
})

t.test('clients that ask again at once find a slot each', t => {
  const m = crowded(6)
  m.request(10, 'a', honest)
  m.request(20, 'a', { clientId: 'third' })
  for (const [id, granted] of [
    [1, 10],
    [2, 20]
  ] as const) {
    t.same(short(m.send({ type: 'leave', id, key: 'a' })), [`grant ${granted}`])
  }
  m.send({ type: 'leave', id: 10, key: 'a' })
  const effects = m.send({ type: 'leave', id: 20, key: 'a' })
  t.same(short(effects), [], 'two slots are free')
  t.equal(alarmOf(effects), 2000)
  t.same(short(m.request(11, 'a', honest)), ['grant 11'])
  t.same(short(m.request(21, 'a', { clientId: 'third' })), ['grant 21'])
  m.send({ type: 'leave', id: 11, key: 'a' })
  m.send({ type: 'leave', id: 21, key: 'a' })
  t.same(short(m.until(2000)), ['grant 5'], 'after a while one is left for both')
  t.same(short(m.until(MINUTE - 1)), [])
  t.same(short(m.until(MINUTE)), ['grant 6'])
  t.end()
})

t.test('a client has a bound of its own in each queue', t => {
  const m = crowded(4, { queuePerKey: 2 })
  t.same(short([...m.request(5, 'a', greedy), ...m.request(6, 'a', greedy)]), [])
  const refused = m.request(7, 'a', greedy)
  t.same(short(refused), ['refuse 7 queue_full'])
  t.match(errorOf(refused)?.message, /^2 of your requests .* limits\.queue_per_key allows 2\./)
  t.same(short(m.request(8, 'a', honest)), [], 'others wait')
  t.same(short(m.request(9, 'b', greedy)), ['load b'], 'for each model')
  t.end()
})

t.test('in a full queue the client with most requests gives up its newest one for one with fewer', t => {
  const m = crowded(8, { maxQueue: 4 })
  t.same(short(m.request(9, 'a', greedy)), ['refuse 9 queue_full'])
  t.same(short(m.request(20, 'a', honest)), ['refuse 8 queue_full'])
  t.same(short(m.request(21, 'a', honest)), ['refuse 7 queue_full'])
  t.same(short(m.request(22, 'a', honest)), ['refuse 22 queue_full'], 'until it has as many')
  t.same(short(m.request(30, 'a', { clientId: 'third' })), ['refuse 6 queue_full'])
  t.end()
})

t.test('a displaced request that a reload was for takes it back', t => {
  const m = crowded(1, { maxQueue: 2 })
  m.request(2, 'a', { ...greedy, options: { num_ctx: 8192 } })
  m.request(3, 'a', { ...greedy, slots: 4 })
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(10, 'a', honest)), ['refuse 3 queue_full'])
  t.same(short(m.request(11, 'a', { clientId: 'third' })), ['refuse 11 queue_full'])
  t.end()
})

t.test('what is asked for in parts lets others have their turn between two of them', t => {
  const m = crowded(5)
  t.same(short(m.send({ type: 'yield', id: 1, key: 'a' })), ['grant 1'], 'not those of the same client')
  m.request(10, 'a', honest)
  t.same(short(m.send({ type: 'yield', id: 1, key: 'a' })), ['grant 10'])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 1'], 'it stays the first of its client')
  t.same(short(m.send({ type: 'yield', id: 99, key: 'a' })), [], 'one that does not run')
  t.end()
})

t.test('a reload waits until others that use the engine have had as much as its client', t => {
  const m = crowded(1)
  m.request(10, 'a', honest)
  const q8 = { ...greedy, options: { cache_type_k: 'q8_0' as const } }
  m.at(1000)
  t.same(short(m.request(2, 'a', q8)), [])
  t.equal(m.state.engines.get('a')!.phase.name, 'draining', 'both have had a second')
  m.at(2000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [])
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load a'])
  m.at(3000)
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 2'])
  t.same(short(m.request(11, 'a', honest)), [], 'the other client has the defaults back')
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'])
  t.equal(loadOf(m.send({ type: 'gone', key: 'a' }))?.cache_type_k, 'f16')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 11'])
  const effects = m.request(3, 'a', q8)
  t.same(short(effects), [])
  t.equal(
    m.state.engines.get('a')!.phase.name,
    'ready',
    'two reloads of a second on four slots are to be caught up with'
  )
  t.same(short(m.request(12, 'a', honest)), ['grant 12'], 'the others go on')
  t.ok(alarmOf(effects)! > 3000)
  m.until(alarmOf(effects)! + 20_000)
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.end()
})

t.test('reloads of what others use are bounded for each client, and come back with time', t => {
  const m = machine({ reloads: 2, keepAlive: Number.POSITIVE_INFINITY })
  m.request(1, 'a', honest)
  m.send({ type: 'loaded', key: 'a' })
  m.send({ type: 'leave', id: 1, key: 'a' })
  const reload = (id: number, clientId: string, type: 'q8_0' | 'f16') => {
    const effects = m.request(id, 'a', { clientId, options: { cache_type_k: type } })
    if (errorOf(effects)) return errorOf(effects)
    t.same(short(effects), ['unload a'])
    m.send({ type: 'gone', key: 'a' })
    t.same(short(m.send({ type: 'loaded', key: 'a' })), [`grant ${id}`])
    m.send({ type: 'leave', id, key: 'a' })
    return undefined
  }
  t.equal(reload(2, 'greedy', 'q8_0'), undefined)
  m.at(MINUTE)
  t.equal(reload(3, 'greedy', 'f16'), undefined)
  const error = reload(4, 'greedy', 'q8_0')
  t.match(error, { code: 'rate_limited', retryAfter: 540, message: /limits\.reloads allows each client 2 reloads/ })
  t.same(short(m.request(5, 'a', greedy)), ['grant 5'], 'without the options it is answered')
  m.send({ type: 'leave', id: 5, key: 'a' })
  t.equal(reload(6, 'third', 'q8_0'), undefined, 'others may')
  m.at(10 * MINUTE)
  t.equal(reload(7, 'greedy', 'f16'), undefined, 'the first one is ten minutes ago')
  t.end()
})

t.test('while one client alternates its options, others go on', t => {
  const m = machine({ reloads: 3 })
  const events: ('loaded' | 'gone')[] = []
  const running: number[] = []
  const waiting = new Map<string, number>()
  const counts = { load: 0, refuse: 0, grant: 0 }
  const clientIds = new Map<number, string>()
  let now = 0
  let id = 0
  const heed = (effects: string[]) => {
    for (const effect of effects) {
      const [what, about] = effect.split(' ')
      if (what === 'load') events.push('loaded')
      if (what === 'load') counts.load++
      if (what === 'unload') events.push('gone')
      if (what === 'grant') running.push(Number(about))
      if (what === 'grant' && clientIds.get(Number(about)) === 'honest') counts.grant++
      if (what === 'refuse') waiting.delete(clientIds.get(Number(about))!)
      if (what === 'refuse') counts.refuse++
    }
  }
  for (let step = 0; step < 400; step++) {
    now += 100
    heed(short(m.until(now)))
    for (const clientId of ['honest', 'greedy']) {
      if (waiting.has(clientId)) continue
      waiting.set(clientId, ++id)
      clientIds.set(id, clientId)
      const type = id % 4 > 1 ? 'q8_0' : 'f32'
      heed(short(m.request(id, 'a', { clientId, options: clientId === 'greedy' ? { cache_type_k: type } : {} })))
    }
    const event = events.shift()
    if (event === 'loaded') heed(short(m.send({ type: 'loaded', key: 'a' })))
    if (event === 'gone') heed(short(m.send({ type: 'gone', key: 'a' })))
    const ended = running.shift()
    if (ended === undefined) continue
    waiting.delete(clientIds.get(ended)!)
    heed(short(m.send({ type: 'leave', id: ended, key: 'a' })))
  }
  t.ok(counts.load <= 8, `${counts.load} loads: the first, three reloads, and back`)
  t.ok(counts.refuse > 100, `${counts.refuse} refused`)
  t.ok(counts.grant > 300, `${counts.grant} of 400 steps served the other client`)
  t.end()
})

t.test('a client that has a model for itself loads it anew as often as it wants', t => {
  const m = machine({ reloads: 0 })
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.send({ type: 'leave', id: 1, key: 'a' })
  for (let id = 2; id <= 20; id++) {
    const effects = m.request(id, 'a', { options: { cache_type_k: id % 2 === 0 ? 'q8_0' : 'f16' } })
    t.same(short(effects), ['unload a'])
    m.send({ type: 'gone', key: 'a' })
    m.send({ type: 'loaded', key: 'a' })
    m.send({ type: 'leave', id, key: 'a' })
  }
  t.end()
})

t.test('a reload does not keep others waiting for the end of a long answer', t => {
  const m = crowded(1, { fairWait: 1000, roomTimeout: 20_000 })
  m.request(2, 'a', { clientId: 'wishful', options: { num_ctx: 8192 } })
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(10, 'a', honest)), [])
  t.same(short(m.until(3999)), [])
  t.same(short(m.until(4000)), ['grant 10'])
  t.same(short(m.request(11, 'a', honest)), ['grant 11'], 'the others have as much time as the drain took')
  const effects = m.until(30_000)
  t.same(short(effects), [], 'it drains again')
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(12, 'a', honest)), ['refuse 2 queue_full'], 'and is refused at last')
  t.equal(m.state.engines.get('a')!.phase.name, 'ready')
  t.end()
})

t.test('options that one client chose are no reason for another one to have less than the defaults', t => {
  for (const options of [{ num_ctx: 16 }, { n_gpu_layers: 0 }, { cache_type_v: 'q4_0' as const }]) {
    const m = machine()
    m.request(1, 'a', { ...greedy, options })
    m.send({ type: 'loaded', key: 'a' })
    t.same(short(m.request(2, 'a', greedy)), ['grant 2'], 'to the client itself they are good enough')
    m.request(3, 'a', honest)
    m.send({ type: 'leave', id: 1, key: 'a' })
    t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'], JSON.stringify(options))
    const [name] = Object.keys(options) as (keyof typeof options)[]
    t.not(loadOf(m.send({ type: 'gone', key: 'a' }))?.[name!], options[name!])
    t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 3'])
  }
  const larger = machine()
  larger.request(1, 'a', { ...greedy, options: { num_ctx: 8192, num_parallel: 8 } })
  larger.send({ type: 'loaded', key: 'a' })
  t.same(short(larger.request(2, 'a', honest)), ['grant 2'], 'more is good enough for everybody')
  t.end()
})

t.test('options that do not load fail for those who asked for them', t => {
  const m = machine()
  m.request(1, 'a', { ...greedy, options: { cache_type_k: 'q4_0' } })
  m.request(2, 'a', honest)
  const effects = m.send({ type: 'load-failed', key: 'a', error: new CorralError('load_failed', 'no') })
  t.same(short(effects), ['refuse 1 load_failed', 'load a'])
  t.equal(loadOf(effects)?.cache_type_k, 'f16')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 2'])
  t.end()
})

t.test('a load that nobody waits for ends after the grace, and serves one who comes back', t => {
  const m = machine({ loadGrace: 1000 })
  m.request(1)
  const effects = m.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(effects), [])
  t.equal(alarmOf(effects), 1000)
  m.at(900)
  m.request(2)
  t.same(short(m.until(5000)), [], 'somebody waits again')
  m.send({ type: 'leave', id: 2, key: 'a' })
  t.same(short(m.until(6000)), ['abort-load a'])
  t.same(short(m.request(3)), [])
  const ended = m.send({ type: 'load-failed', key: 'a', error: new CorralError('model_stopped', 'stopped') })
  t.same(short(ended), ['load a'], 'one that comes while it ends has a new one')

  const preparing = machine({ loadGrace: 1000 })
  preparing.held.add('a')
  preparing.request(1)
  preparing.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(preparing.until(999)), [])
  t.same(short(preparing.until(1000)), ['abort-prepare a'], 'a conversion too')

  const only = machine({ loadGrace: 0 })
  only.request(1, 'a', { loadOnly: true })
  t.same(short(only.until(10_000)), [], 'one who only loads waits as well')
  t.end()
})

t.test('the wish of one client does not unload what another one uses', t => {
  const m = machine()
  m.request(1, 'a', { ...honest, keepAlive: 10 * MINUTE })
  m.send({ type: 'loaded', key: 'a' })
  m.send({ type: 'leave', id: 1, key: 'a' })
  m.request(2, 'a', { ...greedy, keepAlive: 0 })
  t.equal(alarmOf(m.send({ type: 'leave', id: 2, key: 'a' })), 10 * MINUTE)
  const all = machine()
  all.request(1, 'a', honest)
  all.send({ type: 'loaded', key: 'a' })
  t.same(short(all.send({ type: 'keep-alive', key: 'a', keepAlive: 0 })), [], 'while it answers')
  t.same(short(all.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'], 'who may stop it speaks for all')
  t.end()
})

t.test('memory is given by turns: who has many models loaded comes behind who waits for one', t => {
  const m = machine({ maxLoaded: 1 })
  m.request(1, 'a', greedy)
  m.send({ type: 'loaded', key: 'a' })
  m.at(1000)
  for (const [id, key] of [
    [2, 'b'],
    [3, 'c'],
    [4, 'd']
  ] as const)
    m.request(id, key, greedy)
  m.at(2000)
  m.request(10, 'x', honest)
  m.at(3000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load b'], 'it waited longest')
  m.send({ type: 'loaded', key: 'b' })
  t.same(short(m.send({ type: 'leave', id: 2, key: 'b' })), ['unload b'])
  t.same(short(m.send({ type: 'gone', key: 'b' })), ['load x'], 'its client had a load meanwhile')
  t.end()
})

t.test('a client that keeps evicting what others use waits for their turn to end', t => {
  const m = machine({ maxLoaded: 1, reloads: 1, fairWait: 15_000 })
  const swap = (id: number, key: string, clientId: string) => {
    const [, other] = [key, [...m.state.engines.keys()].find(each => each !== key)!]
    const effects = m.request(id, key, { clientId })
    if (short(effects).includes(`unload ${other}`)) {
      m.send({ type: 'gone', key: other })
      m.send({ type: 'loaded', key })
      m.send({ type: 'leave', id, key })
    }
    return short(effects)
  }
  m.request(1, 'x', honest)
  m.send({ type: 'loaded', key: 'x' })
  m.send({ type: 'leave', id: 1, key: 'x' })
  t.same(swap(2, 'a', 'greedy'), ['unload x'])
  m.at(1000)
  t.same(swap(3, 'x', 'honest'), ['unload a'])
  m.at(2000)
  t.same(swap(4, 'b', 'greedy'), [], 'it was idle, and its client may be back')
  t.same(short(m.request(5, 'x', honest)), ['grant 5'])
  m.send({ type: 'leave', id: 5, key: 'x' })
  t.same(short(m.until(16_999)), [])
  t.same(short(m.until(17_000)), ['unload x'])
  t.end()
})
