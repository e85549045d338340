import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { packageRoot } from '../../../../../core/system/package-info.ts'
import { type Choice, chooseLoad, chooseNode } from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import type { NodeModel, NodeView } from '../../../../../plugins/machines/cluster/placement/cluster-view.ts'
import { PrefixMemory } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import { clusterOf, digestsOf, holding, MODEL, member, model, stored, talk, text } from './support.ts'

const GIB = 2 ** 30
const MINUTE = 60_000

/** A node as described in the cases. */
interface NodeCase {
  loaded?: Partial<NodeModel>
  stored?: Partial<NodeModel>
  other?: Partial<NodeModel>
  state?: NodeView['state']
  reserved?: number
  memory?: { reserved: number; budget?: number }[]
}

interface Case {
  what: string
  members: Record<string, NodeCase>
  read?: { member: string; contents: string[]; at?: number; session?: string }[]
  asks?: string[]
  session?: string
  tried?: string[]
  now?: number
  expected: string
}

const CASES: Record<string, Case[]> = parse(
  readFileSync(join(packageRoot, 'test', 'fixtures', 'placement', 'choose-node.yaml'), 'utf8')
)

/** Returns a node. The cases give sizes in GiB and times in minutes. */
function nodeFrom(name: string, { loaded, stored: onDisk, other, state, reserved = 0, memory }: NodeCase): NodeView {
  const scaled = ({ size = 1, usedAt, ...more }: Partial<NodeModel>) => ({
    ...more,
    size: size * GIB,
    ...(usedAt !== undefined && { usedAt: usedAt * MINUTE })
  })
  const models = {
    ...(loaded && { [MODEL]: model(scaled(loaded)) }),
    ...(onDisk && { [MODEL]: stored(scaled(onDisk)) }),
    ...(other && { other: model(scaled({ size: 4, usedAt: 0, ...other })) })
  }
  const pools = memory?.map(({ reserved, budget }) => ({
    pool: 'host',
    reserved: reserved * GIB,
    ...(budget !== undefined && { budget: budget * GIB })
  }))
  return member(name, models, { ...holding(reserved), ...(pools && { memory: pools }), ...(state && { state }) })
}

const contentsFrom = (contents: string[]) =>
  talk(...contents.map(each => each.replace(/^(\d+)#(\d+)/, (_, length, seed) => text(Number(length), Number(seed)))))

const say = ({ member, why, from }: Choice & { from?: NodeView }) =>
  [member?.name ?? 'nobody', why, ...(from ? [from.name] : [])].join(' ')

for (const [title, cases] of Object.entries(CASES)) {
  t.test(`chooseNode considers ${title}`, async t => {
    for (const { what, members, read = [], asks = ['hello'], session, tried = [], now = 0, expected } of cases) {
      const nodes = Object.entries(members).map(([name, node]) => nodeFrom(name, node))
      const prefixes = new PrefixMemory()
      const cluster = clusterOf(...nodes)
      for (const { member: name, contents, at = 0, session } of read) {
        const { model } = cluster.hosts(MODEL).get(name)!
        const prompt = digestsOf(contentsFrom(contents), session)
        prefixes.read({ member: name, model: MODEL, ...model }, prompt, at * MINUTE)
      }
      const wanted = { model: MODEL, prompt: digestsOf(contentsFrom(asks), session), tried: new Set(tried) }
      t.equal(say(chooseNode(wanted, cluster, prefixes, now * MINUTE)), expected, what)
      const reversed = clusterOf(...nodes.reverse())
      t.equal(say(chooseNode(wanted, reversed, prefixes, now * MINUTE)), expected, `${what}, in any order of nodes`)
    }
  })
}

t.test('a conversation that began at another gateway stays at the same node', async t => {
  const members = ['a', 'b', 'c', 'd', 'e'].map(name => member(name, model()))
  for (let number = 0; number < 20; number++) {
    const prompt = (contents: string[]) => ({ model: MODEL, prompt: digestsOf(talk(...contents)) })
    const begun = [text(800, number)]
    const one = chooseNode(prompt(begun), clusterOf(...members), new PrefixMemory(), 0)
    const other = chooseNode(prompt([...begun, 'yes', 'on']), clusterOf(...members), new PrefixMemory(), 0)
    t.equal(other.member?.name, one.member?.name)
  }
})

t.test('chooseLoad places a replica where there is none yet', async t => {
  const members = [
    member('a', model({ running: 4 })),
    member('b', model({ state: 'loading' })),
    member('c', stored(), holding(3)),
    member('d')
  ]
  const next = (...tried: string[]) =>
    say(chooseLoad({ model: MODEL, tried: new Set(tried) }, clusterOf(...members), 0))
  t.equal(next(), 'c load')
  t.equal(next('c'), 'd fetch b')
  t.equal(next('c', 'd'), 'nobody away')
})

t.test('a model that is only on disk is loaded on the node that has stored the conversation', async t => {
  const members = ['a', 'b', 'c', 'd'].map(name => member(name, stored({ storedTokens: 1000 })))
  for (const { name } of members) {
    const prefixes = new PrefixMemory()
    prefixes.read({ member: name, model: MODEL, slots: 1, context: 4096 }, digestsOf(talk(text(3000))), 0)
    prefixes.emptySlots(name, MODEL)
    const wanted = { model: MODEL, prompt: digestsOf(talk(text(3000), 'yes', 'on')) }
    t.equal(say(chooseNode(wanted, clusterOf(...members), prefixes, 0)), `${name} load`)
  }
})

t.test('a free node is found among a thousand', async t => {
  const members = Array.from({ length: 1000 }, (_, index) => member(`m${index}`, model({ running: 4, queued: 2 })))
  members[617] = member('m617', model({ running: 3 }))
  const cluster = clusterOf(...members)
  const prefixes = new PrefixMemory()
  const choose = (...contents: string[]) =>
    say(chooseNode({ model: MODEL, prompt: digestsOf(talk(...contents)) }, cluster, prefixes, 0))
  t.equal(choose('hello'), 'm617 least_busy')
  cluster.remove('m617')
  t.match(choose('hello'), /least_busy/)
  const first = text(2000, 1)
  prefixes.read({ member: 'm5', model: MODEL, slots: 4, context: 4096 }, digestsOf(talk(first)), 0)
  Object.assign(cluster.hosts(MODEL).get('m5')!.model, { running: 1, queued: 0 })
  t.equal(choose(first, text(500, 2), 'and then?'), 'm5 prefix')
})
