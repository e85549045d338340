import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { reservedBy } from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { errorOf, holdersOf, loadOf, machine, short } from './support.ts'

const GIB = 2 ** 30
const host = (gibibytes: number) => ({ host: gibibytes * GIB })
const outOfMemory = new CorralError('insufficient_memory', 'out of memory')
const stopped = new CorralError('model_stopped', 'stopped')
type Machine = ReturnType<typeof machine>

/** A machine with 10 GiB of main memory. */
function small(needs: Record<string, number>, limits: Parameters<typeof machine>[0] = {}): Machine {
  const m = machine(
    { maxLoaded: 10, ...limits },
    Object.fromEntries(Object.entries(needs).map(([key, n]) => [key, host(n)]))
  )
  m.send({ type: 'budget', budget: host(10) })
  return m
}

let ids = 1000
/** Loads a model at this time and leaves it idle. */
function background(m: Machine, key: string, at: number, loadTime = 1000, more: object = {}): void {
  m.at(at)
  const id = ++ids
  m.request(id, key, more)
  m.send({ type: 'loaded', key, loadTime })
  m.send({ type: 'leave', id, key })
}

t.test('a load is prepared first, and its memory stays reserved until the engine is gone', t => {
  const m = small({ a: 6, b: 6 })
  m.held.add('a')
  t.same(
    m.request(1, 'a').map(effect => effect.type),
    ['prepare']
  )
  t.same(m.request(2, 'a'), [], 'one is enough')
  t.same(short(m.prepared('a')), ['load a'])
  t.same(m.prepared('a'), [], 'a repeated outcome is ignored')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 1', 'grant 2'])
  t.same(short(m.request(3, 'b')), [], 'the other engine is busy')
  m.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load b'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), [], 'a repeated end is ignored')
  t.end()
})

t.test('eviction chooses the cheapest sufficient engines', t => {
  const table: [what: string, prepare: (m: Machine) => void, needs: Record<string, number>, expected: string[]][] = [
    ['none if there is room', m => background(m, 'a', 0), { a: 4, z: 6 }, ['load z']],
    [
      'the longest idle',
      m => {
        background(m, 'a', 0)
        background(m, 'b', 10_000)
      },
      { a: 4, b: 4, z: 4 },
      ['unload a']
    ],
    [
      'two quick loads rather than one slow load',
      m => {
        background(m, 'a', 0, 60_000)
        background(m, 'b', 1, 500)
        background(m, 'c', 2, 500)
      },
      { a: 4, b: 2, c: 2, z: 5 },
      ['unload b', 'unload c']
    ],
    [
      'no more than needed: only the large one',
      m => {
        background(m, 'a', 0)
        background(m, 'b', 1)
        background(m, 'c', 2)
      },
      { a: 1, b: 1, c: 7, z: 7 },
      ['unload c']
    ],
    [
      'no more than needed: two of three',
      m => {
        background(m, 'a', 0)
        background(m, 'b', 1)
        background(m, 'c', 2)
      },
      { a: 2, b: 4, c: 4, z: 8 },
      ['unload b', 'unload c']
    ],
    [
      'never a pinned one',
      m => {
        background(m, 'a', 0, 1000, { pinned: true })
        background(m, 'b', 10_000)
      },
      { a: 4, b: 4, z: 4 },
      ['unload b']
    ],
    [
      'none if that would not suffice',
      m => {
        background(m, 'a', 0)
        m.request(1, 'b')
        m.send({ type: 'loaded', key: 'b' })
      },
      { a: 2, b: 6, z: 8 },
      []
    ],
    [
      'the one that shares a group',
      m => {
        background(m, 'a', 0)
        background(m, 'b', 10_000, 1000, { groups: ['large'] })
      },
      { a: 1, b: 1, z: 1 },
      ['unload b']
    ]
  ]
  for (const [what, prepare, needs, expected] of table) {
    const m = small(needs)
    prepare(m)
    m.at(20_000)
    t.same(short(m.request(9, 'z', { groups: ['large'] })), expected, what)
  }
  t.end()
})

t.test('each pool has its own budget', t => {
  const m = machine({}, { a: { host: GIB, CUDA0: 6 * GIB }, b: { host: GIB, CUDA0: 6 * GIB }, c: { host: 5 * GIB } })
  m.send({ type: 'budget', budget: { host: 10 * GIB, CUDA0: 8 * GIB } })
  background(m, 'a', 0)
  background(m, 'c', 1)
  t.same(short(m.request(1, 'b')), ['unload a'])
  m.send({ type: 'gone', key: 'a' })
  t.equal(m.state.engines.get('b')!.phase.name, 'loading')
  t.end()
})

t.test('a model that can never fit is refused at once, with numbers and names', t => {
  const large = small({ a: 11 })
  const refused = large.request(1, 'a')
  t.same(short(refused), ['refuse 1 insufficient_memory'])
  t.match(errorOf(refused), { message: /"a".*11\.8 GB.*10\.7 GB/, details: { need: host(11), budget: host(10) } })
  t.equal(large.state.engines.size, 0)

  const pinned = small({ a: 5, b: 6 })
  background(pinned, 'a', 0, 1000, { pinned: true })
  t.match(errorOf(pinned.request(1, 'b')), { code: 'insufficient_memory', message: /"a" \(5\.4 GB, pinned\)/ })
  const group = small({ a: 1, b: 1 })
  background(group, 'a', 0, 1000, { pinned: true, groups: ['g'] })
  t.match(errorOf(group.request(1, 'b', { groups: ['g'] })), { message: /together with "a", which is pinned/ })

  const mixed = small({})
  mixed.held.add('a')
  mixed.request(1, 'a', { options: { num_ctx: 99_999 } })
  mixed.request(2, 'a')
  t.same(short(mixed.prepared('a', host(20))), ['refuse 1 insufficient_memory'], 'only the request that asked for it')
  const load = mixed.prepared('a', host(2))
  t.same(short(load), ['load a'])
  t.equal(loadOf(load)?.num_ctx, 4096)
  t.end()
})

t.test('a busy model gives way after fair_wait', t => {
  const m = small({ a: 6, b: 6 }, { fairWait: 15_000 })
  m.request(1, 'a', { maxConcurrent: 1 })
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { maxConcurrent: 1 })
  m.request(3, 'a', { maxConcurrent: 1 })
  m.at(100_000)
  t.same(holdersOf(m.request(4, 'b'), 'b')?.holders, ['a'], 'the waiting model is reported')
  m.until(110_000)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 2'], 'until then its own queue comes first')
  t.same(short(m.until(120_000)), [], 'answers are never interrupted')
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'], 'no new answer starts')
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load b'])
  t.same(short(m.send({ type: 'loaded', key: 'b' })), ['grant 4'])
  t.same(short(m.send({ type: 'leave', id: 4, key: 'b' })), ['unload b'], 'the first model has its turn again')
  t.same(short(m.send({ type: 'gone', key: 'b' })), ['load a'])
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 3'])
  t.end()
})

t.test('a busy model gives way after fair_count answers, unless nobody waits any more', t => {
  const m = small({ a: 6, b: 6 }, { fairCount: 2 })
  m.request(1, 'a', { maxConcurrent: 1 })
  m.send({ type: 'loaded', key: 'a' })
  m.request(99, 'b')
  for (let id = 2; id <= 5; id++) m.request(id, 'a', { maxConcurrent: 1 })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 2'])
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 3'])
  m.request(6, 'a', { maxConcurrent: 1 })
  t.same(short(m.send({ type: 'leave', id: 99, key: 'b' })), [], 'the waiting client has left')
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 4'])
  m.request(100, 'b')
  m.request(7, 'a', { maxConcurrent: 1 })
  t.same(short(m.send({ type: 'leave', id: 4, key: 'a' })), ['grant 5'])
  t.same(short(m.send({ type: 'leave', id: 5, key: 'a' })), ['grant 6'])
  t.same(short(m.send({ type: 'leave', id: 6, key: 'a' })), ['unload a'], 'though another request waits')

  const called = small({ a: 6, b: 6 }, { fairWait: 1000 })
  called.request(1, 'a', { maxConcurrent: 1 })
  called.send({ type: 'loaded', key: 'a' })
  called.request(2, 'b')
  called.request(3, 'a', { maxConcurrent: 1 })
  called.until(5000)
  called.send({ type: 'leave', id: 1, key: 'a' })
  t.equal(called.state.engines.get('a')!.phase.name, 'stopping')

  const late = small({ a: 5, b: 5, c: 10 }, { fairWait: 1000 })
  for (const [id, key] of [
    [1, 'a'],
    [2, 'b']
  ] as const) {
    late.request(id, key, { maxConcurrent: 1 })
    late.send({ type: 'loaded', key })
  }
  late.request(3, 'c')
  late.request(4, 'a', { maxConcurrent: 1 })
  late.until(5000)
  t.same(short(late.send({ type: 'leave', id: 1, key: 'a' })), [], 'nothing is unloaded before that is enough')
  t.same(short(late.send({ type: 'leave', id: 3, key: 'c' })), ['grant 4'], 'it serves again')
  t.end()
})

t.test('three models that need all the memory take turns in order of their wait', t => {
  const m = small({ a: 9, b: 9, c: 9 }, { fairWait: 10_000 })
  let id = 0
  const clientIds: string[] = []
  const running = new Map<number, string>()
  const apply = (effects: ReturnType<Machine['send']>): void => {
    for (const effect of effects) {
      if (effect.type === 'grant') running.set(effect.id, effect.key)
      if (effect.type === 'load') {
        clientIds.push(effect.key)
        apply(m.send({ type: 'loaded', key: effect.key }))
      }
      if (effect.type === 'unload') apply(m.send({ type: 'gone', key: effect.key }))
    }
  }
  // Each has more requests than can be served.
  for (let now = 0; now < 100_000; now += 500) {
    apply(m.until(now))
    for (const key of ['a', 'b', 'c']) apply(m.request(++id, key, { maxConcurrent: 1 }))
    for (const [id, key] of [...running]) {
      running.delete(id)
      apply(m.send({ type: 'leave', id, key }))
    }
  }
  t.same(clientIds.slice(0, 7), ['a', 'b', 'c', 'a', 'b', 'c', 'a'])
  t.ok(clientIds.length <= 12, `only necessary swaps: ${clientIds.length}`)
  t.end()
})

t.test('small models do not starve a large one and overtake it only without delaying it', t => {
  const m = small({ a: 4, z: 8, b: 4, c: 2 })
  m.request(1, 'a')
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'z')
  t.same(short(m.request(3, 'b')), [], 'there is room beside "a" but not beside "z"')
  t.same(short(m.request(4, 'c')), ['load c'], 'there is room beside both')
  m.send({ type: 'loaded', key: 'c' })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), ['load z'])
  t.end()
})

t.test('waiting for room ends after room_timeout with an error that names the holders', t => {
  const m = small({ a: 6, b: 6 }, { roomTimeout: 60_000 })
  m.request(1, 'a')
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'b')
  m.at(30_000)
  m.request(3, 'b')
  const first = m.until(60_000)
  t.same(short(first), ['refuse 2 insufficient_memory'])
  t.match(errorOf(first), { message: /"b".*1 min.*6\.4 GB of the 10\.7 GB.*"a" \(6\.4 GB, 1 running\)/ })
  t.same(short(m.until(90_000)), ['refuse 3 insufficient_memory'])
  t.notOk(m.state.engines.has('b'))
  t.end()
})

t.test('loads run in parallel only if they are sure to fit', t => {
  const m = small({ a: 3, b: 3, c: 3.5 })
  t.same(short(m.request(1, 'a')), ['load a'])
  t.same(short(m.request(2, 'b')), ['load b'])
  t.same(short(m.request(3, 'c')), [], 'within the budget, but too close to it')
  m.send({ type: 'loaded', key: 'a' })
  t.same(short(m.send({ type: 'loaded', key: 'b' })).slice(-1), ['load c'])

  const guessed = small({ a: 1, b: 1, c: 1 })
  guessed.uncertain.add('b')
  guessed.request(1, 'a')
  t.same(short(guessed.request(2, 'b')), [], 'an uncertain estimate waits for other loads')
  t.same(short(guessed.request(3, 'c')), [], 'nobody overtakes it meanwhile')
  t.same(short(guessed.send({ type: 'loaded', key: 'a' })), ['grant 1', 'load b'])
  t.same(short(guessed.send({ type: 'loaded', key: 'b' })), ['grant 2', 'load c'])
  t.end()
})

t.test('reported memory replaces the estimate, and a surplus evicts idle models', t => {
  const m = small({ a: 4, b: 4, c: 2 })
  background(m, 'a', 0)
  background(m, 'c', 1)
  m.at(1000)
  m.request(1, 'b')
  t.same(short(m.send({ type: 'loaded', key: 'b', use: host(7) })), ['grant 1', 'unload a'])
  t.same(reservedBy(m.state.engines.get('b')!), host(7))
  t.same(short(m.send({ type: 'budget', budget: host(8) })), ['unload c'], 'the same after the budget shrinks')
  t.end()
})

t.test('a load that runs out of memory is retried once without idle models, then refused', t => {
  const m = small({ a: 2, b: 2, p: 2, z: 2 })
  background(m, 'a', 0)
  background(m, 'b', 1)
  background(m, 'p', 2, 1000, { pinned: true })
  t.same(short(m.request(1, 'z')), ['load z'])
  t.same(short(m.send({ type: 'load-failed', key: 'z', error: outOfMemory })), ['unload a', 'unload b'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), [])
  t.same(short(m.send({ type: 'gone', key: 'b' })), ['load z'])
  t.same(short(m.send({ type: 'load-failed', key: 'z', error: outOfMemory })), ['refuse 1 insufficient_memory'])
  t.equal(m.state.engines.get('p')!.phase.name, 'ready')
  t.end()
})

t.test('a reload is estimated first, and the running engine stays if there is no room', t => {
  const m = small({ a: 4, b: 4 })
  m.request(1, 'a')
  m.send({ type: 'loaded', key: 'a' })
  m.needs.a = host(20)
  t.same(
    short(m.request(2, 'a', { options: { num_ctx: 8192 } })),
    ['refuse 2 insufficient_memory'],
    'too large: nothing is unloaded'
  )
  t.same(short(m.request(3, 'a')), ['grant 3'])

  m.needs.a = host(8)
  background(m, 'b', 10)
  m.request(4, 'a', { options: { num_ctx: 8192 } })
  m.send({ type: 'leave', id: 1, key: 'a' })
  t.same(
    short(m.send({ type: 'leave', id: 3, key: 'a' })),
    ['unload b', 'unload a'],
    'room for the larger model is made as well'
  )
  t.same(short(m.send({ type: 'gone', key: 'a' })), [])
  const effects = m.send({ type: 'gone', key: 'b' })
  t.same(short(effects), ['load a'])
  t.equal(loadOf(effects)?.num_ctx, 8192)

  const busy = small({ a: 4, b: 4 }, { roomTimeout: 1000 })
  busy.request(1, 'a')
  busy.send({ type: 'loaded', key: 'a' })
  busy.request(2, 'b')
  busy.send({ type: 'loaded', key: 'b' })
  busy.needs.a = host(8)
  busy.request(3, 'a', { options: { num_ctx: 8192 } })
  busy.request(4, 'a')
  t.same(short(busy.send({ type: 'leave', id: 1, key: 'a' })), [], 'it is not unloaded before there is room')
  t.same(short(busy.until(1000)), ['refuse 3 insufficient_memory', 'grant 4'])
  t.end()
})

t.test('stop, close and delete work at each step of a load', t => {
  const preparing = small({ a: 1 })
  preparing.held.add('a')
  preparing.request(1, 'a')
  const stop = { type: 'stop', key: 'a', running: stopped, waiting: stopped, save: true } as const
  t.same(short(preparing.send(stop)), ['refuse 1 model_stopped', 'abort-prepare a'])
  t.same(preparing.request(2, 'a'), [], 'a new request waits for the end of the cancelled load')
  t.same(
    preparing.send({ type: 'prepare-failed', key: 'a', error: stopped }).map(effect => effect.type),
    ['prepare']
  )
  t.same(short(preparing.prepared('a')), ['load a'])

  const waiting = small({ a: 6, b: 6 })
  waiting.request(1, 'b')
  waiting.send({ type: 'loaded', key: 'b' })
  waiting.request(2, 'a')
  t.same(short(waiting.send(stop)), ['refuse 2 model_stopped'])
  t.notOk(waiting.state.engines.has('a'))
  waiting.request(3, 'a')
  t.same(short(waiting.send({ type: 'close' })), ['refuse 3 shutting_down'])
  t.same(short(waiting.send({ type: 'leave', id: 1, key: 'b' })), ['unload b'])
  t.same(short(waiting.send({ type: 'gone', key: 'b' })), [])
  t.equal(waiting.state.engines.size, 0)
  t.end()
})

t.test('max_concurrent limits the answers of a model', t => {
  const m = small({})
  for (let id = 1; id <= 4; id++) m.request(id, 'a', { maxConcurrent: 2 })
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 1', 'grant 2'])
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 3'])
  t.end()
})

t.test('a reload waits for running answers without a limit, and for room with one', t => {
  const m = small({ a: 4 }, { roomTimeout: 1000 })
  m.request(1, 'a')
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { options: { num_ctx: 8192 } })
  m.until(60_000)
  m.send({ type: 'alarm', key: 'a' })
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'])
  t.equal(loadOf(m.send({ type: 'gone', key: 'a' }))?.num_ctx, 8192)
  t.end()
})
