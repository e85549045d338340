import t from 'tap'
import { trialCount } from '../../../../support/trial-count.ts'
import { simulateMany } from './simulation.ts'

const HISTORIES = trialCount(60)

t.test(`placement keeps its invariants in ${HISTORIES} random histories of a cluster`, async t => {
  const { report, counts } = simulateMany(1, HISTORIES)
  t.equal(report, undefined)
  t.comment(JSON.stringify(counts))
  const did = 'answered, refused, prefix, least_busy, session, load, fetch, tried elsewhere, grow, shrink'
  for (const what of did.split(', ')) {
    t.ok(counts[what]! > HISTORIES / 20, `it did something: ${what} ${counts[what]}`)
  }
})
