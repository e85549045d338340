import t from 'tap'
import { trialCount } from '../../../../support/trial-count.ts'
import { corralRouter, makeTrace, replay } from './trace-replay.ts'

t.setTimeout(900_000)

t.test('three nodes get nine tenths of the hits of one node and share the load, in many traces', { timeout: 0 }, t => {
  const seeds = Array.from({ length: trialCount(2) }, (_, index) => index + 1)
  const share = seeds.map(seed => {
    const trace = makeTrace(seed, { conversations: 100, within: 1_200_000, systems: 5, systemLength: 2000 })
    const single = replay(trace, 1, 12, corralRouter())
    const three = replay(trace, 3, 4, corralRouter())
    t.ok(three.spread.requests <= 1.3, `trace ${seed}: the busiest node had ${three.spread.requests} times the mean`)
    return three.hits / single.hits
  })
  const mean = share.reduce((sum, each) => sum + each, 0) / share.length
  t.comment(share.map(each => each.toFixed(3)).join(' '))
  t.ok(mean >= 0.9, `of the hits ${mean} on average`)
  t.ok(Math.min(...share) >= 0.85, `of the hits ${Math.min(...share)} at least`)
  t.end()
})
