import t from 'tap'
import {
  decideMachines,
  decideReplicas,
  type MachineLoad,
  type MachineState,
  type ReplicaBounds,
  type ReplicaLoad,
  type ReplicaState
} from '../../../../../plugins/machines/cluster/placement/replicas.ts'
import { trialCount } from '../../../../support/trial-count.ts'
import { Dice } from '../../../running/scheduler/simulated-world.ts'

const SECOND = 1000
const MINUTE = 60 * SECOND
const bounds = { min: 0, max: 8, cooldown: 5 * MINUTE }
const load = (loaded: number, running: number, queued: number, more: Partial<ReplicaLoad> = {}): ReplicaLoad => ({
  loaded,
  loading: 0,
  slots: 4 * loaded,
  free: queued ? 0 : Math.max(0, 4 * loaded - running),
  running,
  queued,
  ...more
})

t.test('decideReplicas adds and removes members after the load has lasted', async t => {
  const table: [what: string, load: ReplicaLoad, wanted: number, why: string, bounds?: ReplicaBounds][] = [
    ['no demand, no replica', load(0, 0, 0), 0, 'enough'],
    ['a minimum is loaded before any demand', load(0, 0, 0), 2, 'minimum', { ...bounds, min: 2, max: 8 }],
    ['all slots are busy, nobody waits', load(1, 4, 0), 1, 'enough'],
    ['one waits and is served soon', load(1, 4, 1), 1, 'enough'],
    ['half as many wait as a member has slots', load(1, 4, 2), 2, 'queue'],
    ['very many wait: at first twice as many members', load(1, 4, 60), 2, 'queue'],
    ['enough slots for all', load(2, 8, 3), 3, 'queue'],
    ['no new request waits while another member has free slots', load(2, 5, 40, { free: 3 }), 2, 'enough'],
    ['no more than the maximum', load(2, 8, 40), 2, 'maximum', { ...bounds, min: 0, max: 2 }],
    ['never more', load(1, 4, 40), 1, 'maximum', { ...bounds, min: 0, max: 1 }],
    ['none while one is loading', load(1, 4, 60, { loading: 1 }), 2, 'enough'],
    ['the first one is loading, which may be enough for the queue', load(0, 0, 9, { loading: 1 }), 1, 'enough'],
    ['fewer are needed', load(3, 4, 0), 2, 'idle'],
    ['all are needed', load(3, 5, 0), 3, 'enough'],
    ['the last one stays: its member unloads it when unused', load(1, 0, 0), 1, 'enough'],
    ['a minimum stays', load(2, 0, 0), 2, 'enough', { ...bounds, min: 2, max: 8 }],
    ['a maximum below the current number', load(3, 12, 0), 1, 'maximum', { ...bounds, min: 0, max: 1 }]
  ]
  for (const [what, now, wanted, why, own = bounds] of table) {
    const first = decideReplicas({}, now, own, 0)
    const later = decideReplicas(first.state, now, own, first.at ?? 10 * MINUTE)
    t.match(later, { wanted, why }, what)
  }
})

t.test('short queues and short pauses change nothing', async t => {
  let state: ReplicaState = {}
  const at = (now: number, what: ReplicaLoad) => {
    const decision = decideReplicas(state, what, bounds, now)
    state = decision.state
    return decision
  }
  t.match(at(0, load(1, 4, 8)), { wanted: 1, at: 2 * SECOND })
  t.match(at(SECOND, load(1, 4, 0)), { wanted: 1, at: undefined })
  t.match(at(1.5 * SECOND, load(1, 4, 8)), { wanted: 1, at: 3.5 * SECOND }, 'its time starts again')
  t.match(at(3.5 * SECOND, load(1, 4, 8)), { wanted: 2 })
  t.match(at(3.6 * SECOND, load(1, 4, 8, { loading: 1 })), { wanted: 2 }, 'it is loading')
  t.match(at(5 * SECOND, load(2, 1, 0)), { wanted: 2, at: 5 * SECOND + 5 * MINUTE })
  t.match(at(4 * MINUTE, load(2, 5, 0)), { wanted: 2, at: undefined }, 'it is used again')
  t.match(at(5 * MINUTE, load(3, 1, 0)), { wanted: 3, at: 10 * MINUTE })
  t.match(at(10 * MINUTE, load(3, 1, 0)), { wanted: 2 })
  t.match(at(10 * MINUTE + 1, load(3, 1, 0)), { wanted: 2 }, 'until one is gone')
  t.match(at(11 * MINUTE, load(2, 1, 0)), { wanted: 2, at: 16 * MINUTE }, 'the next one has its own time')
})

t.test('a member that is lost for a moment is not replaced', async t => {
  const own = { ...bounds, min: 2 }
  const lost = decideReplicas({}, load(1, 0, 0), own, 0)
  t.match(lost, { wanted: 1, at: 2 * SECOND })
  t.match(decideReplicas(lost.state, load(1, 0, 0), own, 2 * SECOND), { wanted: 2, why: 'minimum' })
  const back = decideReplicas(lost.state, load(2, 0, 0), own, SECOND)
  t.match(decideReplicas(back.state, load(1, 0, 0), own, 2 * SECOND), { wanted: 1 }, 'its time starts again')
})

t.test('a long queue keeps asking until there are more members', async t => {
  const { state } = decideReplicas({}, load(1, 4, 8), bounds, 0)
  const grown = decideReplicas(state, load(1, 4, 8), bounds, 3 * SECOND)
  t.equal(grown.wanted, 2)
  t.equal(decideReplicas(grown.state, load(1, 4, 8), bounds, 4 * SECOND).wanted, 2)
})

const HISTORIES = trialCount(300)

t.test(`decideReplicas keeps its invariants in ${HISTORIES} random histories`, async t => {
  const counts = { grown: 0, shrunk: 0, short: 0 }
  for (let seed = 1; seed <= HISTORIES; seed++) {
    const dice = new Dice(seed)
    const min = dice.pick([0, 0, 1, 3])
    const max = Math.max(min, dice.pick([1, 2, 5, Number.POSITIVE_INFINITY]))
    const own = { ...bounds, min, max }
    let state: ReplicaState = {}
    let [now, loaded, loading, grownAt, shrunkAt] = [0, dice.under(4), 0, -MINUTE * 60, -MINUTE * 60]
    for (let step = 0; step < 120; step++) {
      const asked = dice.pick([0, 0, 1, 4 * loaded, 4 * loaded + 1, 4 * loaded + dice.under(40)])
      const running = Math.min(asked, 4 * loaded)
      const given = load(loaded, running, asked - running, { loading })
      const { wanted, why, at, state: next } = decideReplicas(state, given, own, now)
      state = next
      const present = loaded + loading
      const where = `seed ${seed}, step ${step}: ${JSON.stringify({ given, own, wanted, why, at })}`
      if (wanted > own.max) t.fail(`more than the maximum: ${where}`)
      if (wanted < present && wanted < Math.min(own.min, present)) t.fail(`less than the minimum: ${where}`)
      if (at !== undefined && at <= now) t.fail(`it would decide for ever: ${where}`)
      if (wanted > present && why === 'queue') {
        if (now - shrunkAt < 2 * SECOND) t.fail(`more right after less: ${where}`)
        if (wanted > 2 * loaded && wanted > loaded + 1) t.fail(`too many at once: ${where}`)
        counts.grown++
        grownAt = now
      }
      if (wanted > present && why === 'minimum') counts.short++
      if (wanted < present && why === 'idle') {
        if (now - grownAt < 5 * MINUTE) t.fail(`less soon after more: ${where}`)
        if (wanted !== present - 1) t.fail(`more than one at once: ${where}`)
        counts.shrunk++
        shrunkAt = now
      }
      // The wish is fulfilled or not, and members come and go.
      if (wanted > present && dice.chance(0.7)) loading = wanted - loaded
      else if (loading && dice.chance(0.5)) [loaded, loading] = [loaded + loading, 0]
      else if (wanted < loaded && dice.chance(0.7)) loaded--
      else if (dice.chance(0.03)) loaded = Math.max(0, loaded - 1)
      now += dice.pick([100, SECOND, 3 * SECOND, MINUTE, 6 * MINUTE])
      if (at !== undefined && dice.chance(0.5)) now = Math.max(now, at)
    }
  }
  for (const [what, count] of Object.entries(counts)) t.ok(count > HISTORIES / 10, `${what}: ${count}`)
})

t.test('decideMachines asks for members and gives them back after a cooldown', async t => {
  let state: MachineState | undefined
  const at = (now: number, present: number, occupied: number, lacking = 0) => {
    const decision = decideMachines(
      state,
      { known: 2, present, occupied, lacking } satisfies MachineLoad,
      5 * MINUTE,
      now
    )
    state = decision.state
    return { wanted: decision.state.wanted, at: decision.at }
  }
  t.match(at(0, 0, 0), { wanted: 2 }, 'a gateway that starts gives nothing back at once')
  t.match(at(SECOND, 2, 2, 1), { wanted: 2, at: 31 * SECOND })
  t.match(at(20 * SECOND, 2, 2), { wanted: 2, at: undefined }, 'there was room')
  t.match(at(30 * SECOND, 2, 2, 1), { wanted: 2, at: 60 * SECOND })
  t.match(at(60 * SECOND, 2, 2, 1), { wanted: 3 }, 'room was lacking for long enough')
  t.match(at(2 * MINUTE, 2, 2, 3), { wanted: 5 })
  t.match(at(3 * MINUTE, 3, 2, 0), { wanted: 5 }, 'one has come and is still empty')
  t.match(at(4 * MINUTE, 5, 5, 0), { wanted: 5 })
  t.match(at(5 * MINUTE, 5, 2, 0), { wanted: 5, at: 10 * MINUTE })
  t.match(at(7 * MINUTE, 5, 4, 0), { wanted: 5 })
  t.match(at(10 * MINUTE, 5, 2, 0), { wanted: 4, at: 15 * MINUTE }, 'the maximum that was needed meanwhile')
  t.match(at(11 * MINUTE, 4, 4, 0), { wanted: 4, at: undefined })
  t.match(at(12 * MINUTE, 4, 0, 0), { wanted: 4, at: 17 * MINUTE }, 'its time starts again')
  t.match(at(17 * MINUTE, 4, 0, 0), { wanted: 0, at: undefined })
})
