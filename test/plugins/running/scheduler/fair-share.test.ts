import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { alarmOf, errorOf, loadOf, machine, short } from './support.ts'

const MINUTE = 60_000
const greedy = { clientId: 'greedy' }
const honest = { clientId: 'honest' }
const oneSlot = { ...DEFAULT_LOAD_OPTIONS, num_parallel: 1 }

/** A machine with a loaded model of four slots, and this many requests of one client. */
function crowded(requests: number, limits: Parameters<typeof machine>[0] = {}) {
  const m = machine(limits)
  m.request(1, 'a', greedy)
  m.send({ type: 'loaded', key: 'a' })
  for (let id = 2; id <= requests; id++) m.request(id, 'a', greedy)
  return m
}

t.test('a client with many requests does not delay other clients', t => {
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

t.test('clients with equal slots are served by their use so far', t => {
  const m = machine()
  const one = { defaults: oneSlot }
  m.request(1, 'a', { ...greedy, ...one })
  m.send({ type: 'loaded', key: 'a' })
  for (const id of [2, 3]) m.request(id, 'a', { ...greedy, ...one })
  for (const id of [11, 12, 13]) m.request(id, 'a', { ...honest, ...one })
  m.at(10_000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 11'])
  m.at(11_000)
  t.same(
    short(m.send({ type: 'leave', id: 11, key: 'a' })),
    ['grant 12'],
    'ten seconds of one request count more than one second'
  )
  m.at(12_000)
  t.same(short(m.send({ type: 'leave', id: 12, key: 'a' })), ['grant 13'])
  m.at(23_000)
  t.same(short(m.send({ type: 'leave', id: 13, key: 'a' })), ['grant 2'])
  t.end()
})

t.test('use of slots that nobody else wanted is not charged later', t => {
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

t.test('nobody overtakes a request for several slots, and the kept slots count as its own', t => {
  const m = crowded(6)
  m.request(10, 'a', { clientId: 'wide', slots: 3 })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [])
  m.request(11, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), [], 'a later request does not overtake it either')
  m.at(10_000)
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 10'])
  m.at(10_001)
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), ['grant 11', 'grant 5'])
  t.equal(m.state.engines.get('a')!.clients.get('wide')!.used, 3 * 10_001)
  t.end()
})

t.test('the last slot stays free for a recent client', t => {
  const m = crowded(3)
  m.request(10, 'a', honest)
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), [])
  const effects = m.request(4, 'a', greedy)
  t.same(short(effects), [], 'it may return at any moment')
  t.equal(alarmOf(effects), MINUTE)
  t.same(short(m.request(11, 'a', honest)), ['grant 11'])
  m.at(1000)
  m.send({ type: 'leave', id: 11, key: 'a' })
  t.same(short(m.until(MINUTE + 999)), [])
  t.same(short(m.until(MINUTE + 1000)), ['grant 4'], 'it is no longer expected')

  const wide = crowded(1)
  wide.request(10, 'a', honest)
  wide.send({ type: 'leave', id: 10, key: 'a' })
  wide.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(wide.request(2, 'a', { ...greedy, slots: 4 })), ['grant 2'], 'a request for all slots gets them')
  t.end()
})

t.test('clients that send requests in a row each find a free slot', t => {
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
  t.same(short(m.until(2000)), ['grant 5'], 'later only one slot is kept for both')
  t.same(short(m.until(MINUTE - 1)), [])
  t.same(short(m.until(MINUTE)), ['grant 6'])
  t.end()
})

t.test('queue_per_key limits each client in each queue', t => {
  const m = crowded(4, { queuePerKey: 2 })
  t.same(short([...m.request(5, 'a', greedy), ...m.request(6, 'a', greedy)]), [])
  const refused = m.request(7, 'a', greedy)
  t.same(short(refused), ['refuse 7 queue_full'])
  t.match(errorOf(refused)?.message, /^2 of your requests .* limits\.queue_per_key allows 2\./)
  t.same(short(m.request(8, 'a', honest)), [], 'others wait')
  t.same(short(m.request(9, 'b', greedy)), ['load b'], 'for each model')
  t.end()
})

t.test('a full queue drops the newest request of the client with the most', t => {
  const m = crowded(8, { maxQueue: 4 })
  t.same(short(m.request(9, 'a', greedy)), ['refuse 9 queue_full'])
  t.same(short(m.request(20, 'a', honest)), ['refuse 8 queue_full'])
  t.same(short(m.request(21, 'a', honest)), ['refuse 7 queue_full'])
  t.same(short(m.request(22, 'a', honest)), ['refuse 22 queue_full'], 'until it has as many')
  t.same(short(m.request(30, 'a', { clientId: 'third' })), ['refuse 6 queue_full'])
  t.end()
})

t.test('a displaced request cancels its reload', t => {
  const m = crowded(1, { maxQueue: 2 })
  m.request(2, 'a', { ...greedy, options: { num_ctx: 8192 } })
  m.request(3, 'a', { ...greedy, slots: 4 })
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(10, 'a', honest)), ['refuse 3 queue_full'])
  t.same(short(m.request(11, 'a', { clientId: 'third' })), ['refuse 11 queue_full'])
  t.end()
})

t.test('letOthers gives slots to other clients between parts', t => {
  const m = crowded(5)
  t.same(short(m.send({ type: 'yield', id: 1, key: 'a' })), ['grant 1'], 'not to the same client')
  m.request(10, 'a', honest)
  t.same(short(m.send({ type: 'yield', id: 1, key: 'a' })), ['grant 10'])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 1'], 'it stays the first of its client')
  t.same(short(m.send({ type: 'yield', id: 99, key: 'a' })), [], 'a request that does not run')
  t.end()
})

t.test('a reload waits until other clients have used the engine as much', t => {
  const m = crowded(1)
  m.request(10, 'a', honest)
  const q8 = { ...greedy, options: { cache_type_k: 'q8_0' as const } }
  m.at(1000)
  t.same(short(m.request(2, 'a', q8)), [])
  t.equal(m.state.engines.get('a')!.phase.name, 'draining', 'both have had one second')
  m.at(2000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), [])
  t.same(short(m.send({ type: 'leave', id: 10, key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load a'])
  m.at(3000)
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 2'])
  t.same(short(m.request(11, 'a', honest)), [], 'the other client gets the defaults back')
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'])
  t.equal(loadOf(m.send({ type: 'gone', key: 'a' }))?.cache_type_k, 'f16')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 11'])
  const effects = m.request(3, 'a', q8)
  t.same(short(effects), [])
  t.equal(
    m.state.engines.get('a')!.phase.name,
    'ready',
    'the other client catches up with two reloads of a second on four slots'
  )
  t.same(short(m.request(12, 'a', honest)), ['grant 12'], 'other clients continue')
  t.ok(alarmOf(effects)! > 3000)
  m.until(alarmOf(effects)! + 20_000)
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.end()
})

t.test('limits.reloads refuses frequent forced reloads until the time has passed', t => {
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
  t.same(short(m.request(5, 'a', greedy)), ['grant 5'], 'it is answered without the options')
  m.send({ type: 'leave', id: 5, key: 'a' })
  t.equal(reload(6, 'third', 'q8_0'), undefined, 'other clients may reload')
  m.at(10 * MINUTE)
  t.equal(reload(7, 'greedy', 'f16'), undefined, 'the first reload is ten minutes old')
  t.end()
})

t.test('alternating options of one client do not block other clients', t => {
  const m = machine({ reloads: 3 })
  const events: ('loaded' | 'gone')[] = []
  const running: number[] = []
  const waiting = new Map<string, number>()
  const counts = { load: 0, refuse: 0, grant: 0 }
  const clientIds = new Map<number, string>()
  let now = 0
  let id = 0
  const apply = (effects: string[]) => {
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
    apply(short(m.until(now)))
    for (const clientId of ['honest', 'greedy']) {
      if (waiting.has(clientId)) continue
      waiting.set(clientId, ++id)
      clientIds.set(id, clientId)
      const type = id % 4 > 1 ? 'q8_0' : 'f32'
      apply(short(m.request(id, 'a', { clientId, options: clientId === 'greedy' ? { cache_type_k: type } : {} })))
    }
    const event = events.shift()
    if (event === 'loaded') apply(short(m.send({ type: 'loaded', key: 'a' })))
    if (event === 'gone') apply(short(m.send({ type: 'gone', key: 'a' })))
    const ended = running.shift()
    if (ended === undefined) continue
    waiting.delete(clientIds.get(ended)!)
    apply(short(m.send({ type: 'leave', id: ended, key: 'a' })))
  }
  t.ok(counts.load <= 8, `${counts.load} loads: the first, three reloads, and back`)
  t.ok(counts.refuse > 100, `${counts.refuse} refused`)
  t.ok(counts.grant > 300, `${counts.grant} of 400 steps served the other client`)
  t.end()
})

t.test('a client that uses a model alone may reload it at any time', t => {
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

t.test('a drain is given up during a long answer while others wait', t => {
  const m = crowded(1, { fairWait: 1000, roomTimeout: 20_000 })
  m.request(2, 'a', { clientId: 'wishful', options: { num_ctx: 8192 } })
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(10, 'a', honest)), [])
  t.same(short(m.until(3999)), [])
  t.same(short(m.until(4000)), ['grant 10'])
  t.same(short(m.request(11, 'a', honest)), ['grant 11'], 'the others have had as much time as the drain took')
  const effects = m.until(30_000)
  t.same(short(effects), [], 'it drains again')
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.same(short(m.request(12, 'a', honest)), ['refuse 2 queue_full'], 'it is refused at last')
  t.equal(m.state.engines.get('a')!.phase.name, 'ready')
  t.end()
})

t.test("one client's options leave other clients at least the defaults", t => {
  for (const options of [{ num_ctx: 16 }, { n_gpu_layers: 0 }, { cache_type_v: 'q4_0' as const }]) {
    const m = machine()
    m.request(1, 'a', { ...greedy, options })
    m.send({ type: 'loaded', key: 'a' })
    t.same(short(m.request(2, 'a', greedy)), ['grant 2'], 'they are enough for the client itself')
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
  t.same(short(larger.request(2, 'a', honest)), ['grant 2'], 'larger options are enough for everybody')
  t.end()
})

t.test('options that fail to load fail only the requests that asked for them', t => {
  const m = machine()
  m.request(1, 'a', { ...greedy, options: { cache_type_k: 'q4_0' } })
  m.request(2, 'a', honest)
  const effects = m.send({ type: 'load-failed', key: 'a', error: new CorralError('load_failed', 'no') })
  t.same(short(effects), ['refuse 1 load_failed', 'load a'])
  t.equal(loadOf(effects)?.cache_type_k, 'f16')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 2'])
  t.end()
})

t.test('an unwanted load ends after the grace period, and serves a client that returns', t => {
  const m = machine({ loadGrace: 1000 })
  m.request(1)
  const effects = m.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(effects), [])
  t.equal(alarmOf(effects), 1000)
  m.at(900)
  m.request(2)
  t.same(short(m.until(5000)), [], 'a client waits again')
  m.send({ type: 'leave', id: 2, key: 'a' })
  t.same(short(m.until(6000)), ['abort-load a'])
  t.same(short(m.request(3)), [])
  const ended = m.send({ type: 'load-failed', key: 'a', error: new CorralError('model_stopped', 'stopped') })
  t.same(short(ended), ['load a'], 'a request during its end gets a new load')

  const preparing = machine({ loadGrace: 1000 })
  preparing.held.add('a')
  preparing.request(1)
  preparing.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(preparing.until(999)), [])
  t.same(short(preparing.until(1000)), ['abort-prepare a'], 'conversions too')

  const only = machine({ loadGrace: 0 })
  only.request(1, 'a', { loadOnly: true })
  t.same(short(only.until(10_000)), [], 'a request that only loads counts too')
  t.end()
})

t.test("one client's keep_alive does not unload a model that another client uses", t => {
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
  t.same(short(all.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'], 'whoever may stop it decides for all')
  t.end()
})

t.test('a client that loads many models comes behind clients that wait for one', t => {
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

t.test('a client that keeps evicting models of others waits for their turns to end', t => {
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
  t.same(swap(4, 'b', 'greedy'), [], 'it was idle, but its client may return')
  t.same(short(m.request(5, 'x', honest)), ['grant 5'])
  m.send({ type: 'leave', id: 5, key: 'x' })
  t.same(short(m.until(16_999)), [])
  t.same(short(m.until(17_000)), ['unload x'])
  t.end()
})
