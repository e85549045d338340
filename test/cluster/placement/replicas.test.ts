import t from 'tap'
import { decideReplicas, type ReplicaLoad, type ReplicaState } from '../../../plugins/cluster/placement/replicas.ts'

const SECOND = 1000
const MINUTE = 60 * SECOND
const bounds = { min: 0, max: 8 }
const load = (loaded: number, running: number, queued: number, more: Partial<ReplicaLoad> = {}): ReplicaLoad => ({
  loaded,
  loading: 0,
  able: 4,
  slots: 4 * loaded,
  running,
  queued,
  ...more
})

t.test('how many members should have a model, once it has looked so for long enough', t => {
  const table: [
    what: string,
    load: ReplicaLoad,
    wanted: number,
    needed: number,
    bounds?: { min: number; max: number }
  ][] = [
    ['nobody asks for it and nobody has it', load(0, 0, 0), 0, 0],
    ['a minimum is loaded before anybody asks', load(0, 0, 0), 2, 2, { min: 2, max: 8 }],
    ['a minimum beyond what there is asks for machines', load(0, 0, 0, { able: 1 }), 1, 2, { min: 2, max: 8 }],
    ['all slots are busy, nobody waits', load(1, 4, 0), 1, 1],
    ['one waits: its turn comes soon', load(1, 4, 1), 1, 1],
    ['half as many wait as a member answers', load(1, 4, 2), 2, 2],
    ['very many wait: twice as many first', load(1, 4, 60), 2, 2],
    ['as many as have slots for all', load(2, 8, 3), 3, 3],
    ['no more than members can have it; machines are asked for', load(3, 12, 40), 4, 6],
    ['no more than the maximum', load(2, 8, 40), 2, 2, { min: 0, max: 2 }],
    ['none more while one is loading', load(1, 4, 60, { loading: 1 }), 2, 2],
    ['some are needed less', load(3, 4, 0), 2, 2],
    ['all are needed', load(3, 5, 0), 3, 3],
    ['the last one stays: its member unloads it when nobody uses it', load(1, 0, 0), 1, 1],
    ['a minimum stays', load(2, 0, 0), 2, 2, { min: 2, max: 8 }]
  ]
  for (const [what, now, wanted, needed, own = bounds] of table) {
    const first = decideReplicas({}, now, own, 0)
    const later = decideReplicas(first.state, now, own, first.at ?? 10 * MINUTE)
    t.match(later, { wanted, needed }, what)
  }
  t.end()
})

t.test('a queue that is long for a moment changes nothing, nor does a moment of rest', t => {
  let state: ReplicaState = {}
  const at = (now: number, what: ReplicaLoad) => {
    const decision = decideReplicas(state, what, bounds, now)
    state = decision.state
    return decision
  }
  t.match(at(0, load(1, 4, 8)), { wanted: 1, at: 2 * SECOND })
  t.match(at(SECOND, load(1, 4, 0)), { wanted: 1, at: undefined })
  t.match(at(1.5 * SECOND, load(1, 4, 8)), { wanted: 1, at: 3.5 * SECOND }, 'its time begins anew')
  t.match(at(3.5 * SECOND, load(1, 4, 8)), { wanted: 2 })
  t.match(at(3.6 * SECOND, load(1, 4, 8, { loading: 1 })), { wanted: 2 }, 'it is loading')
  t.match(at(5 * SECOND, load(2, 1, 0)), { wanted: 2, at: 5 * SECOND + 5 * MINUTE })
  t.match(at(4 * MINUTE, load(2, 5, 0)), { wanted: 2, at: undefined }, 'it is used again')
  t.match(at(5 * MINUTE, load(2, 1, 0)), { wanted: 2, at: 10 * MINUTE })
  t.match(at(10 * MINUTE, load(2, 1, 0)), { wanted: 1 })
  t.match(at(10 * MINUTE + 1, load(2, 1, 0)), { wanted: 2 }, 'the next one has its own time')
  t.match(at(11 * MINUTE, load(1, 1, 0)), { wanted: 1 })
  t.end()
})

t.test('a load that fails is tried again as long as the queue is long', t => {
  const { state } = decideReplicas({}, load(1, 4, 8), bounds, 0)
  const grown = decideReplicas(state, load(1, 4, 8), bounds, 3 * SECOND)
  t.equal(grown.wanted, 2)
  t.equal(decideReplicas(grown.state, load(1, 4, 8), bounds, 4 * SECOND).wanted, 2)
  t.end()
})
