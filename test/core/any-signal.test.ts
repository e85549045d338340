import { getEventListeners, once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { test } from 'tap'
import { withAnySignal } from '../../core/system/any-signal.ts'

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
  t.equal(
    await withAnySignal(signals, async ({ reason }) => reason.message),
    'too late',
    'a signal that was already aborted'
  )

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
