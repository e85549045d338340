import t from 'tap'
import { planRack, routeConversations } from '../../../../../scripts/bench/rack.ts'
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

t.test('if a tenth of the nodes dies, only their conversations are lost', async t => {
  const { hits, left, alsoLost } = routeConversations({
    ...{ nodes: 100, conversations: 5000, remembered: 20_000, sample: 1000 }
  })
  t.ok(hits > 0.99, `${hits} of the conversations continue where they began`)
  t.ok(left > 0.87 && left < 0.93, `${left} afterwards`)
  t.ok(Math.abs(alsoLost) < 0.005, `${alsoLost} of the others`)
})

t.test('a gateway that remembers few conversations finds the others at their home', async t => {
  const { hits } = routeConversations({ nodes: 100, conversations: 5000, remembered: 500, sample: 1000 })
  t.ok(hits > 0.5, `${hits}`)
})

t.test('the replicas of a rack are planned, and planned again when nodes die', async t => {
  const { filling, missing, waiting, moves } = planRack(40)
  t.ok(filling.length > 1, 'in steps')
  t.equal(missing, 0)
  t.equal(waiting, 0, 'no step waits for ever')
  t.comment({ filling: filling.length, moves })
})
