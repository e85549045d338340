/**
 * Measures the cost of routing decisions in a large cluster: `npm run bench:cluster`. Members are plain data and
 * nothing is sent. Prints the tables of docs/measurements/cluster-routing.md.
 */

import { formatTable } from '../command-line/output.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { ClusterView, chooseNode, modelKey, type NodeModel } from '../plugins/machines/cluster/placement/choose-node.ts'
import { PrefixMemory, type PromptBlocks, promptBlocks } from '../plugins/machines/cluster/placement/prefix-memory.ts'
import { describeMachine, percentile } from './bench/measuring.ts'
import { planRack, routeConversations } from './bench/rack.ts'

const MODEL = modelKey('corral/tiny-chat:f16', 'chat')
const SLOTS = 8
const CONTEXT = 16_384
const ROUNDS = 1000
const SYSTEM = randomText(2000, 1)

function randomText(length: number, seed: number): string {
  let text = ''
  for (let number = seed * 1e7; text.length < length; number++) text += `${number.toString(36)} `
  return text.slice(0, length)
}

/** A conversation with this many turns. All conversations have the same instructions. */
function conversation(number: number, turns: number): PromptBlocks {
  const messages = [{ role: 'system', content: SYSTEM }]
  for (let turn = 0; turn < turns; turn++) {
    if (turn > 0) messages.push({ role: 'assistant', content: randomText(800, number * 20 + turn + 10) })
    messages.push({ role: 'user', content: randomText(200, number * 20 + turn) })
  }
  return promptBlocks({ messages }, { model: MODEL, owner: `owner ${number % 1000}` })
}

function createCluster(count: number): { cluster: ClusterView; models: NodeModel[] } {
  const cluster = new ClusterView()
  const models = Array.from({ length: count }, (_, index): NodeModel => {
    const model: NodeModel = {
      state: 'loaded',
      size: 1,
      slots: SLOTS,
      context: CONTEXT,
      running: index % 5,
      queued: 0
    }
    cluster.set({ name: `member-${index}`, state: 'up', models: new Map([[MODEL, model]]), memory: [] })
    return model
  })
  return { cluster, models }
}

const heap = () => {
  global.gc!()
  return process.memoryUsage().heapUsed
}

/** Median and 99th percentile of the duration of many calls, in microseconds. */
function times(calls: readonly (() => unknown)[]): string[] {
  for (const call of calls.slice(0, 200)) call()
  const taken = calls
    .map(call => {
      const from = process.hrtime.bigint()
      call()
      return Number(process.hrtime.bigint() - from) / 1000
    })
    .sort((a, b) => a - b)
  return [0.5, 0.99].map(share => taken[Math.floor(taken.length * share)]!.toFixed(1))
}

const repeat = <T>(make: (index: number) => T) => Array.from({ length: ROUNDS }, (_, index) => make(index))
const section = (title: string, [head, ...rows]: string[][]) =>
  process.stdout.write(
    `\n${title}\n${formatTable(
      head!.map(text => `>${text}`),
      rows,
      120
    )}\n`
  )

if (!global.gc) throw new Error('This benchmark needs --expose-gc. Start it with: npm run bench:cluster')
process.stdout.write(`${describeMachine()}\n`)

const sizes = [1, 10, 100].map(kilobytes => {
  const content = randomText(kilobytes * 1000, 3)
  const [median, p99] = times(
    repeat(index => () => promptBlocks({ messages: [{ role: 'user', content }] }, { model: MODEL, owner: `${index}` }))
  )
  return [`${kilobytes} kB`, median!, p99!]
})
section('Digests of a prompt (µs)', [['prompt', 'median', 'p99'], ...sizes])

const decisions: string[][] = []
const memories: string[][] = []
for (const [members, conversations] of [
  [3, 300],
  [100, 10_000],
  [1000, 100_000],
  [5000, 100_000]
] as const) {
  const { cluster, models } = createCluster(members)
  const before = heap()
  const prefixes = new PrefixMemory(100_000)
  for (let number = 0; number < conversations; number++) {
    const reader = { member: `member-${number % members}`, model: MODEL, slots: SLOTS, context: CONTEXT }
    prefixes.read(reader, conversation(number, 3), number)
  }
  const bytes = heap() - before
  const { sequences, digests } = prefixes.size
  memories.push([
    `${members}`,
    `${sequences}`,
    `${digests}`,
    formatBytes(bytes),
    formatBytes(Math.round(bytes / sequences))
  ])

  const choose = (prompt: PromptBlocks) => () => chooseNode({ model: MODEL, prompt }, cluster, prefixes, 1e6)
  const on = times(repeat(index => choose(conversation(conversations - 1 - (index % 300), 4))))
  const fresh = times(repeat(index => choose(conversation(1e6 + index, 1))))
  for (const model of models) model.running = SLOTS
  for (const [index, model] of models.entries()) model.queued = index % 7
  const busy = times(repeat(index => choose(conversation(1e6 + index, 1))))
  for (const model of models) Object.assign(model, { running: 0, queued: 0 })
  // The whole cost of a request: digests, decision, and remembering it.
  const all = times(
    repeat(index => () => {
      const prompt = conversation(2e6 + index, 3)
      const { member } = chooseNode({ model: MODEL, prompt }, cluster, prefixes, 1e6)
      prefixes.read({ member: member!.name, model: MODEL, slots: SLOTS, context: CONTEXT }, prompt, 1e6)
    })
  )
  decisions.push([`${members}`, ...[on, fresh, busy, all].map(([median, p99]) => `${median} (${p99})`)])
}
section('One decision, median (p99), µs', [
  ['members', 'continues', 'new', 'all are busy', 'new, with digests and memory'],
  ...decisions
])
section('Memory of cached prompts', [['members', 'conversations', 'digests', 'bytes', 'each'], ...memories])

const event = `event: change\nid: 0123456789abcdef-12345\ndata: ${JSON.stringify({
  removed: [],
  set: [{ topic: 'engine', key: MODEL, value: { running: 5, queued: 2, generated_tokens: 123_456 } }]
})}\n\n`
section('Events of members (at most 4 per second each)', [
  ['members', 'bytes each', 'events a second', 'a second'],
  ...[3, 100, 1000].map(members => [
    `${members}`,
    `${event.length}`,
    `${members * 4}`,
    formatBytes(members * 4 * event.length)
  ])
])

const percent = (share: number) => `${(100 * share).toFixed(1)} %`
const both = (micros: readonly number[]) =>
  `${percentile(micros, 0.5).toFixed(0)} (${percentile(micros, 0.99).toFixed(0)})`
section('A tenth of the nodes dies', [
  ['nodes', 'conversations', 'remembered', 'µs', 'memory', 'hits', 'hits after', 'also lost', 'forget, µs'],
  ...(
    [
      [100, 100_000, 200_000, false],
      [100, 100_000, 10_000, false],
      [1000, 1_000_000, 1_500_000, true]
    ] as const
  ).map(([nodes, conversations, remembered, isEven]) => {
    const result = routeConversations({ nodes, conversations, remembered, isEven, sample: 10_000 }, heap)
    return [
      ...[nodes, conversations, remembered].map(String),
      both(result.decisions),
      formatBytes(result.bytes),
      ...[result.hits, result.left, result.alsoLost].map(percent),
      both(result.forgetting)
    ]
  })
])
section('One plan of 50 models, ms', [
  ['nodes', 'plans to fill', 'longest', 'nothing changes', 'one more', 'with moves', 'moves', 'a tenth died'],
  ...[10, 100, 1000].map(nodes => {
    const { filling, steady, more, blocked, moves, died } = planRack(nodes)
    const ms = [Math.max(...filling), steady, more, blocked].map(micros => (micros / 1000).toFixed(1))
    return [`${nodes}`, `${filling.length}`, ...ms, `${moves}`, (died / 1000).toFixed(1)]
  })
])
