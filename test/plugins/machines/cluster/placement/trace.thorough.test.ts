import t from 'tap'
import {
  ClusterView,
  chooseNode,
  modelKey,
  type NodeModel
} from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import { PrefixMemory, promptBlocks } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import { choosePlacement, type SlotState } from '../../../../../runtimes/llama-server/prompt-cache/placement.ts'
import { getTrail } from '../../../../../runtimes/llama-server/prompt-cache/trail.ts'
import { trialCount } from '../../../../support/trial-count.ts'
import { Agenda, Dice } from '../../../running/scheduler/simulated-world.ts'

/*
 * Replays conversations over simulated nodes. The caches of slots are simulated exactly (texts are compared), and slots
 * are chosen as for llama-server.
 */

interface Turn {
  /** Milliseconds after the previous answer, or after the start. */
  pause: number
  messages: { role: string; content: string }[]
  answer: string
}

interface TraceShape {
  conversations: number
  /** Conversations begin within this many milliseconds. */
  within: number
  /** Number of system messages that conversations share. */
  systems: number
  systemLength: number
}

/** Characters per millisecond that are read, and written. */
const READING = 4
const WRITING = 0.12

const MODEL = modelKey('corral/tiny-chat:f16', 'chat')

/** Conversations of many turns, the same for the same seed. */
function makeTrace(seed: number, { conversations, within, systems, systemLength }: TraceShape): Turn[][] {
  const dice = new Dice(seed)
  const words = (length: number) => {
    let text = ''
    while (text.length < length) text += `${dice.under(46_656).toString(36)} `
    return text
  }
  const beginnings = Array.from({ length: systems }, () => words(systemLength * (0.5 + dice.random())))
  return Array.from({ length: conversations }, () => {
    // Some system messages are far more common than others.
    const system = beginnings[Math.floor(dice.random() ** 2 * systems)]!
    const messages = [{ role: 'system', content: system }]
    return Array.from({ length: dice.between(2, 10) }, (_, number) => {
      messages.push({
        role: 'user',
        content: words(dice.chance(0.1) ? dice.between(2000, 8000) : dice.between(30, 500))
      })
      const turn: Turn = {
        pause: number === 0 ? dice.under(within) : 1000 - 12_000 * Math.log(1 - dice.random()),
        messages: [...messages],
        answer: words(dice.between(60, 1200))
      }
      messages.push({ role: 'assistant', content: turn.answer })
      return turn
    })
  })
}

interface Node {
  name: string
  model: NodeModel
  slots: (SlotState & { text: string })[]
  free: Set<SlotState & { text: string }>
  waiting: (() => void)[]
  requests: number
}

interface Replay {
  /** Share of all prompt characters that a slot had already read. */
  hits: number
  /** Requests of the busiest node relative to the mean. */
  spread: number
}

/** Replays a trace over nodes with slots. */
function replay(trace: readonly Turn[][], nodes: number, slots: number): Replay {
  const agenda = new Agenda()
  const cluster = new ClusterView()
  const prefixes = new PrefixMemory()
  const all = new Map<string, Node>()
  for (let index = 0; index < nodes; index++) {
    const model: NodeModel = { state: 'loaded', size: 1, slots, context: 8192, running: 0, queued: 0 }
    const name = `node-${index + 1}`
    const empty = { owner: undefined, trail: undefined, usedAt: 0, background: false, text: '' }
    const own = Array.from({ length: slots }, (_, id) => ({ id, ...empty }))
    all.set(name, { name, model, slots: own, free: new Set(own), waiting: [], requests: 0 })
    cluster.set({ name, state: 'up', models: new Map([[MODEL, model]]), memory: [] })
  }
  let characters = 0
  let found = 0
  let uses = 0

  const ask = (turns: readonly Turn[], number: number) => {
    const turn = turns[number]
    if (!turn) return
    agenda.after(turn.pause, () => {
      const request = { messages: turn.messages }
      const prompt = promptBlocks(request, { model: MODEL, owner: 'owner' })
      const { member } = chooseNode({ model: MODEL, prompt }, cluster, prefixes, agenda.now)
      const node = all.get(member!.name)!
      prefixes.read({ member: node.name, model: MODEL, ...node.model }, prompt, agenda.now)
      node.requests++
      node.model.queued++
      const serve = () => {
        const trail = getTrail(request)
        const text = turn.messages.map(({ role, content }) => `<${role}>${content}`).join('\n')
        // Without saved states, since only the slots of nodes are simulated.
        const prompt = { owner: 'owner', trail, background: false, saved: [], exact: true, pace: 1, restoreSpeed: 1 }
        const { slot } = choosePlacement(node.free, prompt)
        node.free.delete(slot)
        node.model.queued--
        node.model.running++
        const common = slot.owner ? commonLength(slot.text, text) : 0
        Object.assign(slot, { owner: 'owner', trail, text: `${text}\n<assistant>${turn.answer}`, usedAt: ++uses })
        characters += text.length
        found += common
        const time = (text.length - common) / READING + turn.answer.length / WRITING
        agenda.after(time, () => {
          node.model.running--
          node.free.add(slot)
          node.waiting.shift()?.()
          ask(turns, number + 1)
        })
      }
      if (node.free.size) serve()
      else node.waiting.push(serve)
    })
  }
  for (const turns of trace) ask(turns, 0)
  while (!agenda.isEmpty) agenda.step(Number.POSITIVE_INFINITY)

  const requests = [...all.values()].map(node => node.requests)
  const mean = requests.reduce((sum, each) => sum + each, 0) / nodes
  return { hits: found / characters, spread: Math.max(...requests) / mean }
}

function commonLength(one: string, other: string): number {
  const most = Math.min(one.length, other.length)
  let common = 0
  while (common < most && one.charCodeAt(common) === other.charCodeAt(common)) common++
  return common
}

for (const [what, conversations, least] of [
  ['about as many conversations as slots', 100, 0.9],
  ['more conversations than slots', 130, 0.85]
] as const) {
  t.test(`conversations over three nodes get ${least} of the hits of one node: ${what}`, async t => {
    const share = Array.from({ length: trialCount(1) }, (_, index) => {
      const seed = 7 + index
      const trace = makeTrace(seed, { conversations, within: 1_200_000, systems: 5, systemLength: 2000 })
      const single = replay(trace, 1, 12)
      const three = replay(trace, 3, 4)
      t.ok(three.spread <= 1.3, `trace ${seed}: the busiest node had ${three.spread} times the mean`)
      return three.hits / single.hits
    })
    const mean = share.reduce((sum, each) => sum + each, 0) / share.length
    t.comment(share.map(each => each.toFixed(3)).join(' '))
    t.ok(mean >= least, `${mean} on average`)
    t.ok(Math.min(...share) >= least - 0.05, `${Math.min(...share)} at least`)
  })
}
