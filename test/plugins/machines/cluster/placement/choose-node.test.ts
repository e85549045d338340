import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import type { EngineFields } from '../../../../../core/contracts/engines.ts'
import { packageRoot } from '../../../../../core/system/package-info.ts'
import {
  type Choice,
  chooseLoad,
  chooseNode,
  type NodeModel,
  type NodeView
} from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import { PrefixMemory, promptBlocks } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import {
  decideMachines,
  decideReplicas,
  type MachineLoad,
  type MachineState,
  type ReplicaBounds,
  type ReplicaLoad,
  type ReplicaState
} from '../../../../../plugins/machines/cluster/placement/replica-count.ts'
import { randomBelow } from '../../../../support/random.ts'
import { trialCount } from '../../../../support/trial-count.ts'
import { Dice } from '../../../running/scheduler/simulated-world.ts'
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

/** Length of the common prefix of two prompts, by their digests. */
function common(one: EngineFields, other: EngineFields): number {
  const known = new Set(digestsOf(one).blocks.map(({ digest }) => digest))
  return Math.max(
    0,
    ...digestsOf(other)
      .blocks.filter(({ digest }) => known.has(digest))
      .map(({ end }) => end)
  )
}

t.test('a continued conversation keeps all earlier digests', async t => {
  const question = talk(text(700))
  const further = talk(text(700), text(3000, 1), 'and then?')
  t.equal(common(question, further), digestsOf(question).length, 'to the end of the earlier prompt')
  t.notOk(digestsOf(question).continued)
  t.ok(digestsOf(further).continued)
  t.equal(digestsOf(question).key, digestsOf(further).key, 'the conversation is the same')
  t.not(digestsOf(question).key, digestsOf(talk(text(700, 2))).key)
})

t.test('digests differ from the first difference of two prompts on', async t => {
  const messages = (content: unknown) => ({ messages: [{ role: 'user', content }] })
  const table: [what: string, one: EngineFields, other: EngineFields, least: number, most: number][] = [
    ['the same', talk('hello'), talk('hello'), 5, 100],
    ['another question', talk(text(2000)), talk(text(2000, 1)), 0, 100],
    ['the end of a question', talk(`${text(2000)}a`), talk(`${text(2000)}b`), 1500, 2000],
    [
      'the role',
      { messages: [{ role: 'system', content: 'x' }] },
      { messages: [{ role: 'user', content: 'x' }] },
      0,
      100
    ],
    ['one message or two', talk('a', 'b'), talk('ab'), 0, 100],
    ['tools', { ...talk('x'), tools: [{ name: 'one' }] }, { ...talk('x'), tools: [{ name: 'two' }] }, 0, 0],
    ['a field of the template', { ...talk('x'), chat_template_kwargs: { thinking: true } }, talk('x'), 0, 0],
    [
      'a field without effect on the prompt',
      { ...talk(text(500)), temperature: 1 },
      { ...talk(text(500)), stream: true },
      500,
      600
    ],
    ['a continued text', { prompt: text(5000) }, { prompt: text(9000) }, 4096, 5100],
    ['plain content and its parts', messages('hello'), messages([{ type: 'text', text: 'hello' }]), 5, 100]
  ]
  for (const [what, one, other, least, most] of table) {
    const found = common(one, other)
    t.ok(found >= least && found <= most, `${what}: ${found}`)
  }
})

t.test('images count by digest, and by the time that they take to read', async t => {
  const picture = (data: string) => ({
    messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } }] }]
  })
  const one = picture(text(300_000))
  t.equal(common(one, picture(text(300_000))), digestsOf(one).length)
  t.ok(common(one, picture(text(300_000, 1))) < 100)
  t.ok(digestsOf(one).length > 2000 && digestsOf(one).length < 3000, `${digestsOf(one).length}`)
})

t.test('different owners and models share no digests', async t => {
  const request = talk(text(3000))
  const all = [
    { model: MODEL, owner: 'anna' },
    { model: MODEL, owner: 'ben' },
    { model: MODEL, owner: undefined },
    { model: 'other', owner: 'anna' }
  ].flatMap(scope => promptBlocks(request, { ...scope, session: 's' }))
  const digests = all.flatMap(({ blocks, session }) => [...blocks.map(({ digest }) => digest), session])
  t.equal(new Set(digests).size, digests.length)
})

t.test('later text does not change earlier digests, in random conversations', async t => {
  const below = randomBelow(11)
  const letters = ['a', 'ß', '🙂', '\u0001', '\u0002', '"', '\n', 'lorem ']
  const say = () => Array.from({ length: below(below(4) ? 40 : 900) }, () => letters[below(letters.length)]).join('')
  for (let trial = 0; trial < trialCount(300); trial++) {
    const said = Array.from({ length: 1 + 2 * below(4) }, say)
    const longer = [...said, say(), say()]
    const before = digestsOf(talk(...said))
    const after = digestsOf(talk(...longer))
    const beginning = after.blocks.slice(0, before.blocks.length)
    const digests = (blocks: typeof before.blocks) => blocks.map(({ digest, end }) => `${digest} ${end}`)
    if (digests(beginning).join() !== digests(before.blocks).join()) return t.fail(JSON.stringify(longer))
    // One character more or less makes another prompt from there on.
    const at = below(said.length)
    const changed = said.map((content, index) =>
      index === at ? `${content.slice(0, -1)}${content.endsWith('a') ? 'b' : 'a'}` : content
    )
    const other = digestsOf(talk(...changed))
    if (other.blocks.at(-1)!.digest === before.blocks.at(-1)!.digest) return t.fail(JSON.stringify([said, changed]))
  }
})

const reader = (member: string, more: object = {}) => ({ member, model: MODEL, slots: 2, context: 4096, ...more })

t.test('a member is found by continuations and by shared prefixes', async t => {
  const memory = new PrefixMemory()
  const first = digestsOf(talk(text(3000)))
  memory.read(reader('a'), first, 0)
  const further = memory.find(digestsOf(talk(text(3000), 'yes', 'and then?')))
  t.same(further.longest(9), ['a'])
  t.equal(further.common('a'), first.length)
  t.ok(further.goesOn('a'))
  t.equal(further.common('b'), 0)
  const similar = memory.find(digestsOf(talk(`${text(2500)} something else`)))
  t.ok(similar.common('a') >= 2048)
  t.notOk(similar.goesOn('a'))
  t.same(memory.find(digestsOf(talk(text(3000, 1)))).longest(9), [])
})

t.test('longest returns members that know most first', async t => {
  const memory = new PrefixMemory()
  const [one, two, three] = [talk('hi'), talk('hi', text(500), 'on'), talk('hi', text(500), 'on', text(500), 'more')]
  memory.read(reader('a'), digestsOf(one), 0)
  memory.read(reader('c'), digestsOf(three), 0)
  memory.read(reader('b'), digestsOf(two), 0)
  const found = memory.find(digestsOf(talk('hi', text(500), 'on', text(500), 'more', 'x', 'y')))
  t.same(found.longest(9), ['c', 'b', 'a'])
  t.same(found.longest(2), ['c', 'b'])
})

t.test('a conversation replaces the one that it continues', async t => {
  const memory = new PrefixMemory()
  const said = [text(400)]
  for (let turn = 0; turn < 20; turn++) {
    memory.read(reader('a'), digestsOf(talk(...said)), turn)
    said.push(text(200, turn), 'on')
  }
  t.equal(memory.size.sequences, 1)
  t.equal(memory.held('a', MODEL), 1)
  t.equal(memory.oldest('a', MODEL, 100), Number.POSITIVE_INFINITY, 'a slot is empty')
})

t.test('a member is not believed to hold more than its slots can', async t => {
  const memory = new PrefixMemory()
  const prompts = Array.from({ length: 30 }, (_, index) => digestsOf(talk(text(4000, index + 1))))
  for (const [index, prompt] of prompts.entries()) memory.read(reader('a'), prompt, index)
  t.equal(memory.held('a', MODEL), 8, '2 slots × 4096 tokens of 4 characters')
  t.equal(memory.oldest('a', MODEL, 100), 72, 'of the two in its slots')
  t.equal(memory.find(prompts[21]!).common('a'), 0)
  t.equal(memory.find(prompts[22]!).common('a'), prompts[22]!.length, 'perhaps in a cache beside its slots')
  t.notOk(memory.find(prompts[22]!).goesOn('a'))
  t.ok(memory.find(prompts[28]!).goesOn('a'), 'in a slot')
})

t.test('a member that stores conversations holds more, also after an unload', async t => {
  const memory = new PrefixMemory()
  const prompts = Array.from({ length: 30 }, (_, index) => digestsOf(talk(text(4000, index + 1))))
  // Each has about 1000 tokens.
  for (const [index, prompt] of prompts.entries())
    memory.read(reader('a', { storedTokens: Math.max(0, index - 2) * 1000 }), prompt, index)
  t.equal(memory.held('a', MODEL), 30)
  t.equal(memory.find(prompts[0]!).common('a'), prompts[0]!.length)
  memory.emptySlots('a', MODEL)
  memory.emptySlots('nobody', MODEL)
  t.equal(memory.find(prompts[29]!).common('a'), prompts[29]!.length)
  t.notOk(memory.find(prompts[29]!).goesOn('a'), 'it is in no slot')
  memory.forget('a')
  t.same(memory.size, { sequences: 0, digests: 0 })
})

t.test('all members share the memory, and forget leaves nothing behind', async t => {
  const memory = new PrefixMemory(40)
  const large = { slots: 8, context: 1e6 }
  const read = (member: string, index: number) =>
    memory.read(reader(member, large), digestsOf(talk(text(300, index)), `${index}`), index)
  for (let index = 0; index < 100; index++) read('a', index)
  t.equal(memory.size.sequences, 40)
  for (let index = 0; index < 100; index++) read('b', index)
  t.ok(memory.size.sequences <= 40, `${memory.size.sequences}`)
  t.equal(memory.held('b', MODEL), 20)
  memory.read({ member: 'b', model: 'other', slots: 1, context: 4096 }, digestsOf(talk('x')), 0)
  memory.forget('b', MODEL)
  t.equal(memory.held('b', 'other'), 1)
  memory.forget('b')
  memory.forget('a')
  memory.forget('nobody')
  t.same(memory.size, { sequences: 0, digests: 0 })
})

t.test('a session is where its last request went', async t => {
  const memory = new PrefixMemory()
  memory.read(reader('a'), digestsOf(talk('one thing'), 's'), 0)
  t.ok(memory.find(digestsOf(talk('something else'), 's')).hasSession('a'))
  t.notOk(memory.find(digestsOf(talk('something else'), 't')).hasSession('a'))
  t.notOk(memory.find(digestsOf(talk('one thing'))).hasSession('a'))
})

const SECOND = 1000
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

t.test('the last one is unloaded after the configured time without requests', async t => {
  const own = { ...bounds, cooldown: SECOND, idle: 10 * MINUTE }
  let state: ReplicaState = {}
  const at = (now: number, what: ReplicaLoad, more = {}) => {
    const decision = decideReplicas(state, what, { ...own, ...more }, now)
    state = decision.state
    return decision
  }
  t.match(at(0, load(1, 1, 0)), { wanted: 1, at: undefined }, 'it is used')
  t.match(at(MINUTE, load(1, 0, 0)), { wanted: 1, at: 11 * MINUTE })
  const used = load(1, 0, 0, { usedAt: 5 * MINUTE })
  t.match(at(11 * MINUTE, used), { wanted: 1, at: 15 * MINUTE }, 'a short request between two looks counts')
  t.match(at(14 * MINUTE, used, { min: 1 }), { wanted: 1, at: undefined }, 'a minimum stays')
  t.match(at(15 * MINUTE, used), { wanted: 1, at: 25 * MINUTE })
  t.match(at(25 * MINUTE, used), { wanted: 0, why: 'unused' })
  t.match(at(26 * MINUTE, load(2, 0, 0)), { wanted: 2, at: 26 * MINUTE + SECOND }, 'the others have their cooldown')
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
