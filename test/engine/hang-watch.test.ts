import t from 'tap'
import { watchForHang } from '../../runtimes/llama-server/hang-watch.ts'
import { until } from '../support/corral.ts'

/** Milliseconds. */
const LIMIT = 160

/** A watched engine that shows the given signs of life; counts the looks at it. */
function watched(t: { teardown(end: () => void): void }, signs: Partial<Signs>) {
  const state: Signs = { open: 1, received: () => 0, healthy: async () => false, used: async () => 5, ...signs }
  const seen = { looks: 0, probes: 0, hung: 0 }
  const end = watchForHang({
    limit: LIMIT,
    activity() {
      seen.looks++
      return { open: state.open, received: state.received() }
    },
    healthy(signal) {
      seen.probes++
      return state.healthy(signal)
    },
    processorTime: state.used,
    onHung: () => {
      seen.hung++
    }
  })
  t.teardown(end)
  return { state, seen, end }
}
interface Signs {
  open: number
  received: () => number
  healthy: (signal: AbortSignal) => Promise<boolean>
  used: () => Promise<number | undefined>
}

t.test('no byte, no health, no processor time: hung', async t => {
  const { seen } = watched(t, {})
  await until('it is found out', () => seen.hung === 1)
  const { looks } = seen
  t.ok(looks >= 8, `${looks} looks`)
  await new Promise(resolve => setTimeout(resolve, LIMIT))
  t.equal(seen.looks, looks, 'it is not checked any more')
})

t.test('where the system reports no processor time, health decides', async t => {
  const silent = watched(t, { used: async () => undefined })
  await until('it is found out', () => silent.seen.hung === 1)
})

t.test('a health check without an answer counts as failed', async t => {
  const never = (signal: AbortSignal) =>
    new Promise<boolean>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  const { seen } = watched(t, { healthy: never })
  await until('it is found out', () => seen.hung === 1)
})

t.test('each sign of life is enough, however long it takes', async t => {
  let count = 0
  const cases: Record<string, Partial<Signs>> = {
    'no request is open': { open: 0 },
    'bytes come': { received: () => ++count },
    'it answers': { healthy: async () => true },
    'it uses the processor, as in a long prompt evaluation': { used: async () => ++count }
  }
  const watches = Object.values(cases).map(signs => watched(t, signs))
  await until('they are looked at often', () => watches.every(({ seen }) => seen.looks > 40))
  for (const [index, name] of Object.keys(cases).entries()) t.equal(watches[index]!.seen.hung, 0, name)
  t.equal(watches[0]!.seen.probes, 0, 'it gets no health checks without need')
  t.equal(watches[1]!.seen.probes, 0)
})

t.test('a sign of life begins the count anew', async t => {
  let looks = 0
  const { seen } = watched(t, { healthy: async () => ++looks % 7 === 0 })
  await until('it is looked at often', () => seen.looks > 60)
  t.equal(seen.hung, 0)
})

t.test('an ended watch says nothing', async t => {
  const { seen, end } = watched(t, {})
  await until('it is looked at', () => seen.looks > 2)
  end()
  await new Promise(resolve => setTimeout(resolve, LIMIT * 2))
  t.equal(seen.hung, 0)
})
