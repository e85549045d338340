import {
  ClusterView,
  chooseNode,
  type NodeModel,
  type NodeView
} from '../../plugins/machines/cluster/placement/choose-node.ts'
import { type Plan, type PlannedModel, planReplicas } from '../../plugins/machines/cluster/placement/plan-replicas.ts'
import { PrefixMemory, type PromptBlocks } from '../../plugins/machines/cluster/placement/prefix-memory.ts'

/* A rack of many nodes as plain data: what routing and planning cost, and what is lost with a part of the nodes. */

const MODEL = 'acme/chat:q4#chat'
const READER = { model: MODEL, slots: 8, context: 16_384, storedTokens: 4e6 }
const GIB = 2 ** 30

/** Ends of the parts of a turn that are remembered, as `promptBlocks` makes them. */
const ENDS = [512, 768, 1024, 1536, 2048, 3072, 3300]

/**
 * A prompt of a conversation: 340 characters of instructions, which 40 applications have, and about 3,000 in each turn.
 * Computing real digests takes longer than all the rest.
 */
function prompt(number: number, turns: number): PromptBlocks {
  const blocks = [{ digest: number % 40, end: 340, kept: true }]
  for (let turn = 0; turn < turns; turn++) {
    for (const [index, end] of ENDS.entries()) {
      blocks.push({ digest: 100 + (number * 4 + turn) * ENDS.length + index, end: turn * 3000 + end, kept: true })
    }
  }
  const key = Math.imul(number, 2654435761) >>> 0
  return { blocks, length: blocks.at(-1)!.end, key, continued: turns > 1, session: undefined }
}

/** Microseconds of the call. */
function timed<Result>(call: () => Result): [result: Result, micros: number] {
  const from = process.hrtime.bigint()
  const result = call()
  return [result, Number(process.hrtime.bigint() - from) / 1000]
}

interface RackShape {
  nodes: number
  conversations: number
  /** How many conversations the gateway remembers. */
  remembered: number
  /** How many second turns are asked for. */
  sample: number
  /** First turns go to the nodes in turn, which takes less time than choosing. */
  isEven?: boolean
}

interface RackResult {
  /** Microseconds of decisions for second turns. */
  decisions: number[]
  bytes: number
  /** Shares of second turns that reach the node of the first one: with all nodes, and without a tenth of them. */
  hits: number
  left: number
  /** Without a tenth of the nodes: the share of the conversations on other nodes that is lost too. */
  alsoLost: number
  /** Microseconds to forget one node. */
  forgetting: number[]
}

/**
 * Places the first turns of conversations, then asks for second turns, before and after a tenth of the nodes has died.
 * @param heap returns the bytes in use
 */
export function routeConversations(
  { nodes, conversations, remembered, sample, isEven = false }: RackShape,
  heap = () => 0
): RackResult {
  const cluster = new ClusterView()
  for (let index = 0; index < nodes; index++) {
    const model: NodeModel = { state: 'loaded', size: 1, ...READER, running: 2, queued: 0 }
    cluster.set({ name: `node-${index}`, state: 'up', models: new Map([[MODEL, model]]), memory: [] })
  }
  const before = heap()
  const prefixes = new PrefixMemory(remembered)
  const places = new Int32Array(conversations)
  const choose = (prompt: PromptBlocks, now: number) =>
    chooseNode({ model: MODEL, prompt }, cluster, prefixes, now).member!
  for (let number = 0; number < conversations; number++) {
    const first = prompt(number, 1)
    const member = isEven ? `node-${number % nodes}` : choose(first, number).name
    prefixes.read({ ...READER, member }, first, number)
    places[number] = Number(member.slice(5))
  }
  const bytes = heap() - before
  const decisions: number[] = []
  const ask = (isLost: (place: number) => boolean) => {
    let [hits, ofOthers, others] = [0, 0, 0]
    for (let index = 0; index < sample; index++) {
      const number = (index * 7919) % conversations
      const second = prompt(number, 2)
      const [member, micros] = timed(() => choose(second, conversations))
      decisions.push(micros)
      const isHit = member.name === `node-${places[number]}`
      hits += Number(isHit)
      if (isLost(places[number]!)) continue
      others++
      ofOthers += Number(isHit)
    }
    return { hits: hits / sample, ofOthers: ofOthers / others }
  }
  const isDead = (place: number) => place % 10 === 3
  const whole = ask(() => false)
  const known = ask(isDead).ofOthers
  const forgetting: number[] = []
  for (let index = 0; index < nodes; index++) {
    if (!isDead(index)) continue
    const [, micros] = timed(() => {
      cluster.remove(`node-${index}`)
      prefixes.forget(`node-${index}`)
    })
    forgetting.push(micros)
  }
  const rest = ask(isDead)
  return { decisions, bytes, hits: whole.hits, left: rest.hits, alsoLost: known - rest.ofOthers, forgetting }
}

interface PlanResult {
  /** Microseconds of the plans until all replicas of an empty rack are placed … */
  filling: number[]
  /** … and of one plan: if nothing changes, for one more replica, after a tenth of the nodes has died … */
  steady: number
  more: number
  died: number
  /** … and for a model for which others have to be moved, with the number of moves. */
  blocked: number
  moves: number
  /** Steps that wait for each other for ever. */
  waiting: number
  /** Replicas that found no place in the empty rack. */
  missing: number
}

/** Plans the replicas of 50 models of 2 to 60 GiB on nodes with 80 GiB each, three quarters full. */
export function planRack(nodes: number): PlanResult {
  const sizes = Array.from({ length: 50 }, (_, index) => [2, 4, 8, 16, 30, 60][index % 6]! * GIB)
  const keys = sizes.map((_, index) => `acme/model-${index}:q4#chat`)
  const total = sizes.reduce((sum, size) => sum + size, 0)
  const each = Math.floor((0.75 * nodes * 80 * GIB) / total)
  const views = Array.from({ length: nodes }, (_, index): NodeView => {
    const models = new Map(keys.map((key, at): [string, NodeModel] => [key, { ...stored, size: sizes[at]! }]))
    return { name: `node-${index}`, state: 'up', models, memory: [{ pool: 'host', reserved: 0, budget: 80 * GIB }] }
  })
  const cluster = new ClusterView()
  for (const view of views) cluster.set(view)
  const none: ReadonlySet<string> = new Set()
  const plan = (wanted: (index: number) => number, times = 5): [Plan, number] => {
    const models = keys.map((key, index): PlannedModel => {
      const held = views.filter(({ models, state }) => state === 'up' && models.get(key)!.state === 'loaded')
      const quiet = new Set(held.map(({ name }) => name))
      const count = wanted(index)
      return { key, wanted: count, needed: count, min: count, loads: none, avoid: none, spare: quiet, quiet, copies: 0 }
    })
    // The fastest of several, because other programs interrupt some of them.
    const plans = Array.from({ length: times }, () => timed(() => planReplicas(models, cluster)))
    return [plans[0]![0], Math.min(...plans.map(([, micros]) => micros))]
  }
  const follow = ({ steps }: Plan) => {
    for (const { action, model, member, waits } of steps) {
      if (!waits) cluster.get(member)!.models.get(model)!.state = action === 'load' ? 'loaded' : 'stored'
    }
  }
  const filling: number[] = []
  let missing = 0
  for (;;) {
    const [made, micros] = plan(() => each, 1)
    filling.push(micros)
    missing = [...made.missing.values()].reduce((sum, number) => sum + number, 0)
    if (!made.steps.some(({ waits }) => !waits)) break
    follow(made)
  }
  const [last, steady] = plan(() => each)
  const waiting = last.steps.length
  const [, more] = plan(index => each + (index === 0 ? 1 : 0))
  // As many more of the largest ones as need room that small ones take now.
  let [count, blocked, moves] = [each, 0, 0]
  for (; moves === 0 && count < each + 64; count++) {
    const [made, micros] = plan(index => (index === 5 ? count : each))
    blocked = micros
    moves = made.steps.filter(step => step.action === 'load' && step.for !== undefined).length
    if (moves === 0) follow(made)
  }
  for (const [index, view] of views.entries()) {
    if (index % 10 !== 3) continue
    view.state = 'away'
  }
  const [, died] = plan(() => each)
  return { waiting, filling, steady, more, died, blocked, moves, missing }
}

const stored = { state: 'stored', slots: 8, context: 16_384, running: 0, queued: 0 } as const
