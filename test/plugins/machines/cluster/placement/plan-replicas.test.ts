import t from 'tap'
import type { NodeModel, NodeView } from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import {
  type Plan,
  type PlannedModel,
  planReplicas
} from '../../../../../plugins/machines/cluster/placement/plan-replicas.ts'
import { trialCount } from '../../../../support/trial-count.ts'
import { Dice } from '../../../running/scheduler/simulated-world.ts'
import { clusterOf } from './support.ts'

/** The models of a node as a text such as `big=6 small=3+ other=2*`: + is loaded, * is loaded and movable. */
interface NodeCase {
  has?: string
  budget?: number
  state?: NodeView['state']
  zone?: string
  isGuest?: boolean
}

/** What is wanted of a model, such as `2` or `{wanted: 2, copies: 3}`. */
type Wish = number | (Partial<PlannedModel> & { only?: string[] })

function plan(nodes: Record<string, NodeCase>, wishes: Record<string, Wish>): Plan {
  const quiet = new Map<string, Set<string>>()
  const members = Object.entries(nodes).map(([name, { has = '', budget = 8, state = 'up', ...more }]): NodeView => {
    const models = new Map<string, NodeModel>()
    for (const [, model, size, mark] of has.matchAll(/(\w+)=(\d+)([+*]?)/g)) {
      const isLoaded = mark !== ''
      models.set(model!, {
        ...{ state: isLoaded ? 'loaded' : 'stored', size: Number(size), slots: isLoaded ? 4 : 0, context: 0 },
        ...{ running: mark === '+' ? 1 : 0, queued: 0 }
      })
      if (mark === '*') quiet.set(model!, (quiet.get(model!) ?? new Set()).add(name))
    }
    return { name, state, models, memory: [{ pool: 'host', reserved: 0, budget }], ...more }
  })
  const cluster = clusterOf(...members)
  const bound = new Map(
    Object.entries(wishes).map(([key, wish]) => [key, typeof wish === 'number' ? undefined : wish.only])
  )
  cluster.only = key => bound.get(key) && new Set(bound.get(key))
  const models = Object.entries(wishes).map(([key, wish]): PlannedModel => {
    const given = typeof wish === 'number' ? { wanted: wish } : wish
    const { wanted = 0, min = wanted, needed = wanted } = given
    const movable = quiet.get(key) ?? new Set<string>()
    const none = new Set<string>()
    return { key, wanted, min, needed, loads: none, avoid: none, spare: movable, quiet: movable, copies: 0, ...given }
  })
  const made = planReplicas(models, cluster)
  const others = clusterOf(...members.toReversed())
  others.only = cluster.only
  t.same(planReplicas(models.toReversed(), others), made, 'another gateway makes the same plan')
  return made
}

const say = ({ steps }: Plan) =>
  steps.map(({ action, model, member, from, for: other, waits }) =>
    [action, model, member, from && `from ${from}`, other && `for ${other}`, waits && `after ${waits}`]
      .filter(Boolean)
      .join(' ')
  )

t.test('planReplicas chooses nodes and steps', async t => {
  const table: [what: string, nodes: Record<string, NodeCase>, wishes: Record<string, Wish>, steps: string[]][] = [
    ['nothing is wanted', { a: { has: 'x=1' } }, { x: 0 }, []],
    ['nothing changes', { a: { has: 'x=1*' }, b: { has: 'x=1' } }, { x: 1 }, []],
    ['where its files are', { a: {}, b: { has: 'x=1' } }, { x: 1 }, ['load x b']],
    ['where most memory is free', { a: { has: 'x=1 y=3+' }, b: { has: 'x=1 y=2+' } }, { x: 1, y: 2 }, ['load x b']],
    ['its files are copied', { a: { has: 'x=1+' }, b: {} }, { x: 2 }, ['load x b from a']],
    ['not from a node that is away', { a: { has: 'x=1', state: 'away' }, b: {} }, { x: 1 }, []],
    ['from one that drains', { a: { has: 'x=1', state: 'draining' }, b: {} }, { x: 1 }, ['load x b from a']],
    ['not on a guest', { a: { has: 'x=1+' }, b: { isGuest: true } }, { x: 2 }, []],
    ['where it may run', { a: { has: 'x=1' }, b: {} }, { x: { wanted: 1, only: ['b'] } }, ['load x b from a']],
    ['not where it has failed', { a: { has: 'x=1' } }, { x: { wanted: 1, avoid: new Set(['a']) } }, []],
    [
      'in another zone, even without its files',
      { a: { has: 'x=1+', zone: '1' }, b: { has: 'x=1', zone: '1' }, c: { zone: '2' } },
      { x: 2 },
      ['load x c from b']
    ],
    ['the surplus is unloaded', { a: { has: 'x=1*' }, b: { has: 'x=1+' } }, { x: 1 }, ['unload x a']],
    ['not while it is used', { a: { has: 'x=1+' }, b: { has: 'x=1+' } }, { x: 1 }, []],
    ['the last one', { a: { has: 'x=1*' } }, { x: 0 }, ['unload x a']],
    [
      'a large model comes before small ones',
      { a: { has: 'big=7 one=3 two=3' }, b: { has: 'big=7 one=3 two=3', budget: 6 } },
      { one: 1, two: 1, big: 1 },
      ['load big a', 'load one b', 'load two b']
    ],
    [
      'a minimum comes before a queue',
      { a: { has: 'x=5 y=5' }, b: { has: 'y=5+' } },
      { x: 1, y: { wanted: 2, min: 0 } },
      ['load x a']
    ],
    [
      'both have a place, though the first one would prefer that of the second one',
      { a: { has: 'x=5 y=4' }, b: { has: 'x=5', budget: 6 } },
      { x: 1, y: { wanted: 1, only: ['a'] } },
      ['load x b', 'load y a']
    ],
    [
      'small ones in the way are moved: first loaded elsewhere',
      { a: { has: 'small=3*' }, b: { has: 'other=3*' }, c: { has: 'big=6', budget: 2 } },
      { small: 1, other: 1, big: 1 },
      ['load big a from c after memory', 'load small b from a for big', 'unload small a for big after replacement']
    ],
    [
      '… then unloaded',
      { a: { has: 'small=3*' }, b: { has: 'other=3* small=3*' }, c: { has: 'big=6', budget: 2 } },
      { small: { wanted: 2, min: 1, needed: 1 }, other: 1, big: 1 },
      ['load big a from c after memory', 'unload small a for big']
    ],
    [
      'nothing is moved that clients use',
      { a: { has: 'small=3+ big=6' }, b: { has: 'small=3+ big=6' } },
      { small: 2, big: 1 },
      []
    ],
    [
      'nothing that is needed is given up',
      { a: { has: 'small=3* big=6' }, b: { has: 'other=3* big=6' } },
      { small: 1, other: 1, big: { wanted: 2, min: 2 } },
      ['load big a after memory', 'load small b from a for big', 'unload small a for big after replacement']
    ],
    [
      'what is not needed gives way',
      { a: { has: 'small=3* big=6' }, b: { has: 'small=3+' } },
      { small: { wanted: 2, min: 0, needed: 1 }, big: 1 },
      ['load big a after memory', 'unload small a for big']
    ],
    [
      'files are copied ahead of time, where they would fit',
      { a: { has: 'x=5' }, b: { budget: 4 }, c: {} },
      { x: { copies: 2 } },
      ['copy x c from a']
    ],
    [
      'planned replicas count as copies',
      { a: { has: 'x=5+' }, b: {} },
      { x: { wanted: 2, copies: 2 } },
      ['load x b from a']
    ]
  ]
  for (const [what, nodes, wishes, steps] of table) t.same(say(plan(nodes, wishes)), steps, what)
})

t.test('a plan says what is missing, and how many nodes would have room', async t => {
  const busy = { a: { has: 'x=5 y=3 old=7+' } }
  const made = plan(busy, { old: 1, x: 1, y: 2 })
  t.same(Object.fromEntries(made.missing), { x: 1, y: 2 })
  t.equal(made.lacking, 2, 'x and y, and y')
  t.equal(plan(busy, { old: 1, x: { wanted: 1, only: ['a'] } }).lacking, 0, 'new nodes would not help')
  t.equal(plan(busy, { old: 1, x: { wanted: 1, avoid: new Set(['a']) } }).lacking, 0, 'it is tried again there')
})

const HISTORIES = trialCount(400)

t.test(`plans keep their invariants, and are reached, in ${HISTORIES} random clusters`, async t => {
  let moved = 0
  for (let seed = 1; seed <= HISTORIES; seed++) {
    const dice = new Dice(seed)
    const sizes = new Map(['p', 'q', 'r', 's'].map(key => [key, dice.between(1, 6)]))
    const nodes: Record<string, NodeCase & { has: string }> = {}
    for (let number = dice.between(2, 5); number > 0; number--) {
      let left = dice.between(5, 9)
      const node = { budget: left, has: '' }
      for (const [key, size] of sizes) {
        const isLoaded = size <= left && dice.chance(0.5)
        if (isLoaded) left -= size
        node.has += ` ${key}=${size}${isLoaded ? dice.pick(['*', '*', '+']) : ''}`
      }
      nodes[`n${number}`] = node
    }
    const count = (key: string, mark = '[+*]') =>
      Object.values(nodes).filter(({ has }) => new RegExp(`${key}=\\d${mark}`).test(has)).length
    const wishes = Object.fromEntries([...sizes.keys()].map(key => [key, dice.between(0, 2)]))
    const before = Object.fromEntries([...sizes.keys()].map(key => [key, Math.min(count(key), wishes[key]!)]))
    const where = () => `seed ${seed}: ${JSON.stringify({ nodes, wishes })}`
    let steps = 0
    const trail: string[] = []
    for (; steps < 40; steps++) {
      const made = plan(nodes, wishes)
      const next = made.steps.filter(({ waits }) => !waits)
      trail.push(say(made).join(', '))
      if (!next.length) {
        if (made.steps.some(({ waits }) => waits)) t.fail(`it never ends: ${say(made)} ${where()}`)
        break
      }
      for (const { action, model, member, for: other } of next) {
        if (other) moved++
        const { budget, has } = nodes[member]!
        const name = new RegExp(`${model}=(\\d)[+*]?`)
        nodes[member]!.has = has.replace(name, action === 'load' ? `${model}=$1*` : `${model}=$1`)
        if (/\+/.test(name.exec(has)![0])) t.fail(`used by clients: ${where()}`)
        const held = [...nodes[member]!.has.matchAll(/=(\d)[+*]/g)].reduce((sum, [, size]) => sum + Number(size), 0)
        if (held > budget!) t.fail(`${member} is too full: ${where()}`)
        if (count(model) < before[model]!) t.fail(`${model} was given up: ${where()}`)
      }
    }
    if (steps === 40) t.fail(`it never settles: ${trail.slice(-6).join(' | ')} ${where()}`)
  }
  t.ok(moved > 10, `${moved} moves`)
})
