import t from 'tap'
import { trialCount } from '../../../support/trial-count.ts'
import { simulateMany } from './simulation.ts'

const WORLDS = trialCount(60)

t.test(`the scheduler keeps its invariants in ${WORLDS} random simulations`, t => {
  const { report, counts, longestWait } = simulateMany(1, WORLDS)
  t.equal(report, undefined)
  t.comment(JSON.stringify(counts))
  t.ok(longestWait < 1, `the longest wait for room was ${Math.round(longestWait * 100)} % of its bound`)
  for (const what of [
    'grant',
    'evicted',
    'way given',
    'revoke engine_crashed',
    'refuse insufficient_memory',
    'idle',
    'displaced',
    'continue'
  ]) {
    t.ok(counts[what]! > WORLDS / 2, `it did something: ${what} ${counts[what]}`)
  }
  t.end()
})
