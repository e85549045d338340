import { getEventListeners, once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t, { test } from 'tap'
import { abortAfter, untilAborted, withAnySignal } from '../../core/system/abort-signals.ts'
import { dateAt } from '../../core/system/clock.ts'
import { OpenMap, OpenSet } from '../../core/system/open-tables.ts'
import { until } from '../support/corral.ts'

t.test('dates of a time stay equal until the system clock is set, and follow it then', async t => {
  const { now } = Date
  t.teardown(() => Object.assign(Date, { now }))
  const moment = performance.now() + 60_000
  const date = dateAt(moment)
  t.ok(Math.abs(date.getTime() - now() - 60_000) < 1000)
  for (let turn = 0; turn < 1000; turn++) if (dateAt(moment).getTime() !== date.getTime()) t.fail('another date')
  Date.now = () => now() - 3_600_000
  t.ok(Math.abs(dateAt(moment).getTime() - date.getTime() + 3_600_000) < 1000)
  Date.now = now
  t.ok(Math.abs(dateAt(moment).getTime() - date.getTime()) < 1000)
})

t.test('OpenMap and OpenSet behave like Map and Set in any order of operations', async t => {
  const [map, set] = [new OpenMap<number, string>(), new OpenSet<number>()]
  const expected = new Map<number, string>()
  let seed = 7
  const random = (below: number) => {
    seed = (seed * 16_807) % 2_147_483_647
    return seed % below
  }
  for (let step = 0; step < 5000; step++) {
    const key = random(100)
    // Sometimes there are many entries, sometimes few or none.
    if (random(100) < (step % 1000 < 500 ? 70 : 20)) {
      map.set(key, `${step}`)
      set.add(key)
      expected.set(key, `${step}`)
    } else {
      const isThere = expected.delete(key)
      if (map.delete(key) !== isThere || set.delete(key) !== isThere) t.fail(`step ${step}: ${key}`)
    }
    if (map.size !== expected.size || set.size !== expected.size) t.fail(`step ${step}: size`)
    if (map.get(key) !== expected.get(key) || set.has(key) !== expected.has(key)) t.fail(`step ${step}: ${key}`)
  }
  t.strictSame([...map], [...expected])
  t.strictSame([...map.values()], [...expected.values()])
  t.strictSame([...set], [...map.keys()])
  map.clear()
  t.equal(map.size, 0)
  t.strictSame([...map], [])
})

t.test('entries may be deleted during an iteration', async t => {
  const set = new OpenSet<number>()
  for (let thing = 0; thing < 100; thing++) set.add(thing)
  const met: number[] = []
  for (const thing of set) {
    met.push(thing)
    set.delete(thing)
  }
  t.equal(met.length, 100)
  t.equal(set.size, 0)
})

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

test('abortAfter fires although garbage is collected before, also among other signals', async t => {
  const never = new AbortController()
  const reasons: string[] = []
  for (const make of [() => abortAfter(300), () => AbortSignal.any([never.signal, abortAfter(300)])]) {
    make().addEventListener('abort', event => reasons.push((event.target as AbortSignal).reason.name))
  }
  // Garbage of an earlier turn of the event loop.
  setTimeout(collectGarbage, 50)
  await until('both timeouts fired', () => reasons.length === 2)
  t.strictSame(reasons, ['TimeoutError', 'TimeoutError'])
})

test('withAnySignal aborts with the first signal, and no signal remembers it', async t => {
  const [request, server] = [new AbortController(), new AbortController()]
  const signals = [request.signal, server.signal]
  const seen = await withAnySignal(signals, async signal => {
    t.notOk(signal.aborted)
    server.abort(new Error('it stops'))
    request.abort(new Error('too late'))
    return signal.reason.message
  })
  t.equal(seen, 'it stops')
  const found = await withAnySignal(signals, async ({ reason }) => reason.message)
  t.equal(found, 'too late', 'a signal that was already aborted')

  const fresh = new AbortController().signal
  await t.rejects(
    withAnySignal([fresh], () => Promise.reject(new Error('a failure'))),
    { message: 'a failure' }
  )
  for (const signal of [...signals, fresh]) t.same(getEventListeners(signal, 'abort'), [])
})

test('thousands of callers may wait for one signal', async t => {
  const warnings: Error[] = []
  const note = (warning: Error) => warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const server = new AbortController()
  const ends = Array.from({ length: 5000 }, () =>
    withAnySignal([new AbortController().signal, server.signal], signal => once(signal, 'abort'))
  )
  server.abort()
  t.equal((await Promise.all(ends)).length, 5000)
  t.same(getEventListeners(server.signal, 'abort'), [])
  // Node.js reports warnings in the next turn of the event loop.
  await setImmediate()
  t.same(warnings, [])
})

t.test('untilAborted ends with the signal, and the pending work may fail later', async t => {
  const unhandled: unknown[] = []
  const note = (error: unknown) => unhandled.push(error)
  process.on('unhandledRejection', note)
  t.teardown(() => process.off('unhandledRejection', note))
  const failing = () => new Promise<never>((_, reject) => setTimeout(() => reject(new Error('late')), 5))

  const gone = new AbortController()
  const waiting = untilAborted(failing(), gone.signal)
  gone.abort(new Error('gone'))
  await t.rejects(waiting, { message: 'gone' })
  await t.rejects(untilAborted(failing(), gone.signal), { message: 'gone' }, 'also if it was aborted before')
  await t.rejects(untilAborted(Promise.resolve(1), gone.signal), { message: 'gone' })
  await new Promise(resolve => setTimeout(resolve, 20))
  t.same(unhandled, [])

  t.equal(await untilAborted(Promise.resolve(1), new AbortController().signal), 1)
  t.equal(await untilAborted(Promise.resolve(1), undefined), 1)
  await t.rejects(untilAborted(failing(), new AbortController().signal), { message: 'late' })
})
