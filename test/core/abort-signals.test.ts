import { getEventListeners, once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t, { test } from 'tap'
import { abortAfter, untilAborted, withAnySignal } from '../../core/system/abort-signals.ts'
import { until } from '../support/corral.ts'

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
