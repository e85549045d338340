import t from 'tap'
import { simulateMany } from './simulation.ts'

t.test('a thousand random worlds keep the rules', t => {
  const { report, counts, longestWait } = simulateMany(1, 1000)
  t.equal(report, undefined)
  t.comment(JSON.stringify(counts))
  t.ok(longestWait < 1, `the longest wait for room was ${Math.round(longestWait * 100)} % of its bound`)
  for (const what of ['grant', 'evicted', 'way given', 'revoke engine_crashed', 'refuse insufficient_memory']) {
    t.ok(counts[what]! > 500, `it was no idle time: ${what} ${counts[what]}`)
  }
  t.end()
})
