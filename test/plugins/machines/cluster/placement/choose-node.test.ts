import t, { type Test } from 'tap'
import { type Choice, chooseLoad, chooseNode } from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import type { NodeView } from '../../../../../plugins/machines/cluster/placement/cluster-view.ts'
import { PrefixMemory } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import { clusterOf, digestsOf, holding, MODEL, member, model, stored, talk, text } from './support.ts'

const GIB = 2 ** 30
const MINUTE = 60_000

interface Case {
  what: string
  members: NodeView[]
  /** Who has read which conversation, and when. */
  read?: [member: string, contents: string[], at?: number, session?: string][]
  asks?: string[]
  session?: string
  tried?: string[]
  now?: number
  expected: string
}

const say = ({ member, why, from }: Choice & { from?: NodeView }) =>
  [member?.name ?? 'nobody', why, ...(from ? [from.name] : [])].join(' ')

function check(t: Test, cases: readonly Case[]): void {
  for (const { what, members, read = [], asks = ['hello'], session, tried = [], now = 0, expected } of cases) {
    const cluster = clusterOf(...members)
    const prefixes = new PrefixMemory()
    for (const [name, contents, at = 0, own] of read) {
      const host = cluster.hosts(MODEL).get(name)!
      prefixes.read({ member: name, model: MODEL, ...host.model }, digestsOf(talk(...contents), own), at)
    }
    const wanted = { model: MODEL, prompt: digestsOf(talk(...asks), session), tried: new Set(tried) }
    const choice = chooseNode(wanted, cluster, prefixes, now)
    t.equal(say(choice), expected, what)
    const reversed = clusterOf(...[...members].reverse())
    t.equal(say(chooseNode(wanted, reversed, prefixes, now)), expected, `${what}, in any order of members`)
  }
}

const first = [text(2000, 1)]
const second = [...first, text(500, 2), 'and then?']
const busy = (running: number, queued = 0) => model({ running, queued })

t.test('chooseMember prefers free slots, prefixes and sessions among loaded members', t => {
  check(t, [
    {
      what: 'the one with the fewest running',
      members: [member('a', busy(2)), member('b', busy(1)), member('c', busy(3))],
      expected: 'b least_busy'
    },
    {
      what: 'relative to its slots',
      members: [member('a', model({ slots: 16, running: 3 })), member('b', busy(1))],
      expected: 'a least_busy'
    },
    {
      what: 'a conversation stays where it was',
      members: [member('a', busy(3)), member('b')].map(each => (each.models.size ? each : member('b', busy(0)))),
      read: [['a', first]],
      asks: second,
      expected: 'a prefix'
    },
    {
      what: 'but does not queue while a slot is free elsewhere',
      members: [member('a', busy(4)), member('b', busy(3))],
      read: [['a', first]],
      asks: second,
      expected: 'b least_busy'
    },
    {
      what: 'the longest prefix',
      members: [member('a', busy(0)), member('b', busy(2))],
      read: [
        ['a', first],
        ['b', second]
      ],
      asks: [...second, 'x', 'y'],
      expected: 'b prefix'
    },
    {
      what: 'a shared prefix is worth a little company',
      members: [member('a', busy(2)), member('b', busy(0))],
      read: [['a', [`${text(9000, 1)} first`]]],
      asks: [`${text(9000, 1)} second`],
      expected: 'a prefix'
    },
    {
      what: 'but not a crowd',
      members: [member('a', busy(3)), member('b', busy(0))],
      read: [['a', [`${text(3000, 1)} first`]]],
      asks: [`${text(3000, 1)} second`],
      expected: 'b least_busy'
    },
    {
      what: 'a new conversation evicts none',
      members: [member('a', model({ slots: 1 })), member('b', model({ slots: 1 }))],
      read: [['a', [text(900, 5)]]],
      expected: 'b least_busy'
    },
    {
      what: 'or the longest idle one',
      members: [member('a', model({ slots: 1 })), member('b', model({ slots: 1 })), member('c', model({ slots: 1 }))],
      read: [
        ['a', [text(900, 5)], 1.9 * MINUTE],
        ['b', [text(900, 6)], 0],
        ['c', [text(900, 7)], 2 * MINUTE]
      ],
      now: 2 * MINUTE,
      expected: 'b least_busy'
    }
  ])
  t.end()
})

t.test('chooseMember follows sessions', t => {
  const members = [member('a', busy(0)), member('b', busy(1)), member('c', busy(1))]
  check(t, [
    {
      what: 'the session stays, whatever it asks',
      members,
      read: [['b', ['one thing'], 0, 's']],
      asks: ['another one'],
      session: 's',
      expected: 'b session'
    },
    { what: 'all gateways agree on the home of a new session', members, session: 's', expected: 'c session' }
  ])
  t.end()
})

t.test('a conversation that began at another gateway stays at the same member', t => {
  const members = ['a', 'b', 'c', 'd', 'e'].map(name => member(name, busy(0)))
  for (let number = 0; number < 20; number++) {
    const prompt = (contents: string[]) => ({ model: MODEL, prompt: digestsOf(talk(...contents)) })
    const begun = [text(800, number)]
    const one = chooseNode(prompt(begun), clusterOf(...members), new PrefixMemory(), 0)
    const other = chooseNode(prompt([...begun, 'yes', 'on']), clusterOf(...members), new PrefixMemory(), 0)
    t.equal(other.member?.name, one.member?.name)
  }
  t.end()
})

t.test('chooseMember picks the shortest queue when all are busy', t => {
  check(t, [
    {
      what: 'the shortest queue',
      members: [member('a', busy(4, 12)), member('b', busy(4, 3))],
      read: [['a', first]],
      asks: second,
      expected: 'b least_busy'
    },
    {
      what: 'the one with the prefix, unless its queue is a round longer',
      members: [member('a', busy(4, 6)), member('b', busy(4, 3))],
      read: [['a', first]],
      asks: second,
      expected: 'a prefix'
    },
    {
      what: 'a loading one, while the others have long queues',
      members: [member('a', busy(4, 20)), member('b', model({ state: 'loading', slots: 0 }))],
      expected: 'b least_busy'
    },
    {
      what: 'not a loading one, for a short queue',
      members: [member('a', busy(4, 1)), member('b', model({ state: 'loading', slots: 0, queued: 8 }))],
      expected: 'a least_busy'
    }
  ])
  t.end()
})

t.test('chooseMember leaves out unusable members', t => {
  const draining = { state: 'draining' } as const
  const away = { state: 'away' } as const
  check(t, [
    {
      what: 'draining',
      members: [member('a', busy(0), draining), member('b', busy(3))],
      read: [['a', first]],
      asks: second,
      expected: 'b least_busy'
    },
    {
      what: 'away',
      members: [member('a', busy(0), away), member('b', busy(3))],
      read: [['a', first]],
      asks: second,
      expected: 'b least_busy'
    },
    {
      what: 'already tried',
      members: [member('a', busy(0)), member('b', busy(3))],
      tried: ['a'],
      expected: 'b least_busy'
    },
    {
      what: 'all',
      members: [member('a', busy(0), draining), member('b', busy(3), away), member('c', busy(0))],
      tried: ['c'],
      expected: 'nobody away'
    },
    { what: 'nobody has it', members: [member('a'), member('b')], expected: 'nobody unknown' },
    { what: 'there are no members', members: [], expected: 'nobody unknown' },
    {
      what: 'a draining member still provides files',
      members: [member('a', busy(0), draining), member('b')],
      expected: 'b fetch a'
    },
    {
      what: 'a member that is away does not',
      members: [member('a', busy(0), away), member('b')],
      expected: 'nobody away'
    }
  ])
  t.end()
})

t.test('chooseMember chooses where to load a model', t => {
  const other = (more: object) => ({ [MODEL]: stored(), other: model({ size: 4 * GIB, usedAt: 0, ...more }) })
  const large = stored({ size: 6 * GIB })
  check(t, [
    {
      what: 'where there is room',
      members: [member('a', stored(), holding(7.5)), member('b', stored(), holding(2))],
      expected: 'b load'
    },
    {
      what: 'where there is most room',
      members: [member('a', stored(), holding(4)), member('b', stored(), holding(2))],
      expected: 'b load'
    },
    {
      what: 'a missing budget is unlimited',
      members: [
        member('a', stored(), holding(4)),
        member('b', stored(), { memory: [{ pool: 'host', reserved: 9 * GIB }] })
      ],
      expected: 'b load'
    },
    {
      what: 'instead of the longest idle model',
      members: [
        member('a', other({ usedAt: 9 * MINUTE }), holding(7.5)),
        member('b', other({ usedAt: 0 }), holding(7.5))
      ],
      now: 10 * MINUTE,
      expected: 'b load'
    },
    {
      what: 'not instead of a model in use',
      members: [
        member('a', other({ usedAt: 9 * MINUTE }), holding(7.5)),
        member('b', other({ running: 1 }), holding(7.5))
      ],
      now: 10 * MINUTE,
      expected: 'a load'
    },
    {
      what: 'pinned models stay',
      members: [member('a', other({ pinned: true }), holding(7.5)), member('b', other({ running: 1 }), holding(7.5))],
      expected: 'b load'
    },
    {
      what: 'several pools together',
      members: [
        member('a', large, {
          memory: [
            { pool: 'host', reserved: 0, budget: 4 * GIB },
            { pool: 'CUDA0', reserved: 0, budget: 4 * GIB }
          ]
        })
      ],
      expected: 'a load'
    },
    {
      what: 'it fits nowhere',
      members: [member('a', stored({ size: 9 * GIB })), member('b')],
      expected: 'nobody too_large'
    },
    {
      what: 'fetched where it fits',
      members: [member('a', large, { memory: [{ pool: 'host', reserved: 0, budget: GIB }] }), member('b')],
      expected: 'b fetch a'
    },
    {
      what: 'loaded rather than fetched',
      members: [member('a', other({ usedAt: 0 }), holding(7.5)), member('b')],
      expected: 'a load'
    },
    {
      what: 'fetched where it evicts least',
      members: [member('a', stored(), { state: 'draining' }), member('b', {}, holding(7)), member('c', {}, holding(1))],
      expected: 'c fetch a'
    }
  ])
  t.end()
})

t.test('chooseLoad places a replica where there is none yet', t => {
  const members = [
    member('a', busy(4)),
    member('b', model({ state: 'loading' })),
    member('c', stored(), holding(3)),
    member('d')
  ]
  const next = (...tried: string[]) =>
    say(chooseLoad({ model: MODEL, tried: new Set(tried) }, clusterOf(...members), 0))
  t.equal(next(), 'c load')
  t.equal(next('c'), 'd fetch b')
  t.equal(next('c', 'd'), 'nobody away')
  t.end()
})

t.test('a free member is found among a thousand', t => {
  const members = Array.from({ length: 1000 }, (_, index) => member(`m${index}`, busy(4, 2)))
  members[617] = member('m617', busy(3))
  const cluster = clusterOf(...members)
  const prefixes = new PrefixMemory()
  const wanted = { model: MODEL, prompt: digestsOf(talk('hello')) }
  t.equal(say(chooseNode(wanted, cluster, prefixes, 0)), 'm617 least_busy')
  cluster.remove('m617')
  t.match(say(chooseNode(wanted, cluster, prefixes, 0)), /least_busy/)
  prefixes.read({ member: 'm5', model: MODEL, slots: 4, context: 4096 }, digestsOf(talk(...first)), 0)
  Object.assign(cluster.hosts(MODEL).get('m5')!.model, { running: 1, queued: 0 })
  t.equal(say(chooseNode({ model: MODEL, prompt: digestsOf(talk(...second)) }, cluster, prefixes, 0)), 'm5 prefix')
  t.end()
})
