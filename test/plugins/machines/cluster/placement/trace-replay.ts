import type { EngineFields } from '../../../../../core/contracts/engines.ts'
import { chooseNode } from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import {
  ClusterView,
  hashOfName,
  modelKey,
  type NodeModel
} from '../../../../../plugins/machines/cluster/placement/cluster-view.ts'
import { PrefixMemory } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import { type PromptBlocks, promptBlocks } from '../../../../../plugins/machines/cluster/placement/prompt-blocks.ts'
import { chooseSlot, getTrail, type SlotState } from '../../../../../runtimes/llama-server/slot-owners.ts'
import { Agenda, Dice } from '../../../running/scheduler/simulated-world.ts'

/*
 * Replays conversations over simulated nodes. The caches of slots are simulated exactly (texts are compared), and slots
 * are chosen as for llama-server. A router knows only what a gateway knows.
 */

export interface Turn {
  conversation: number
  /** Milliseconds after the previous answer, or after the start. */
  pause: number
  messages: { role: string; content: string }[]
  answer: string
}

export interface TraceShape {
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
export function makeTrace(seed: number, { conversations, within, systems, systemLength }: TraceShape): Turn[][] {
  const dice = new Dice(seed)
  const words = (length: number) => {
    let text = ''
    while (text.length < length) text += `${dice.under(46_656).toString(36)} `
    return text
  }
  const beginnings = Array.from({ length: systems }, () => words(systemLength * (0.5 + dice.random())))
  return Array.from({ length: conversations }, (_, conversation) => {
    // Some system messages are far more common than others.
    const system = beginnings[Math.floor(dice.random() ** 2 * systems)]!
    const messages = [{ role: 'system', content: system }]
    return Array.from({ length: dice.between(2, 10) }, (_, number) => {
      messages.push({
        role: 'user',
        content: words(dice.chance(0.1) ? dice.between(2000, 8000) : dice.between(30, 500))
      })
      const turn: Turn = {
        conversation,
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
  busyTime: number
}

export type Router = (turn: Turn, request: EngineFields, now: number) => string

export interface Replay {
  /** Share of all prompt characters that a slot had already read. */
  hits: number
  /** The busiest node relative to the mean: in requests, and in slot time. */
  spread: { requests: number; time: number }
  /** Milliseconds until a slot was free, and until the first word. */
  wait: { mean: number; p95: number }
  firstWord: { mean: number; p95: number }
  reasons: Record<string, number>
}

/** Replays a trace over nodes with slots. @param route creates a router over their names and views */
export function replay(
  trace: readonly Turn[][],
  nodes: number,
  slots: number,
  route: (cluster: ClusterView, reasons: Record<string, number>) => Router
): Replay {
  const agenda = new Agenda()
  const cluster = new ClusterView()
  const reasons: Record<string, number> = {}
  const all = new Map<string, Node>()
  for (let index = 0; index < nodes; index++) {
    const model: NodeModel = { state: 'loaded', size: 1, slots, context: 8192, running: 0, queued: 0 }
    const name = `node-${index + 1}`
    const own = Array.from({ length: slots }, (_, id) => ({
      id,
      owner: undefined,
      trail: undefined,
      usedAt: 0,
      text: ''
    }))
    all.set(name, { name, model, slots: own, free: new Set(own), waiting: [], requests: 0, busyTime: 0 })
    cluster.set({ name, state: 'up', models: new Map([[MODEL, model]]), memory: [] })
  }
  const router = route(cluster, reasons)
  const waits: number[] = []
  const firstWords: number[] = []
  let characters = 0
  let found = 0
  let uses = 0

  const ask = (turns: readonly Turn[], number: number) => {
    const turn = turns[number]
    if (!turn) return
    agenda.after(turn.pause, () => {
      const arrivedAt = agenda.now
      const request = { messages: turn.messages }
      const node = all.get(router(turn, request, agenda.now))!
      node.requests++
      node.model.queued++
      const serve = () => {
        const trail = getTrail(request)
        const text = turn.messages.map(({ role, content }) => `<${role}>${content}`).join('\n')
        const slot = chooseSlot([...node.free], 'owner', trail) as Node['slots'][number]
        node.free.delete(slot)
        node.model.queued--
        node.model.running++
        const common = slot.owner ? commonLength(slot.text, text) : 0
        Object.assign(slot, { owner: 'owner', trail, text: `${text}\n<assistant>${turn.answer}`, usedAt: ++uses })
        characters += text.length
        found += common
        const reading = (text.length - common) / READING
        waits.push(agenda.now - arrivedAt)
        firstWords.push(agenda.now - arrivedAt + reading)
        const time = reading + turn.answer.length / WRITING
        node.busyTime += time
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

  const spread = (values: number[]) =>
    (Math.max(...values) * values.length) / values.reduce((sum, value) => sum + value, 0)
  return {
    hits: found / characters,
    spread: {
      requests: spread([...all.values()].map(({ requests }) => requests)),
      time: spread([...all.values()].map(({ busyTime }) => busyTime))
    },
    wait: summary(waits),
    firstWord: summary(firstWords),
    reasons
  }
}

function commonLength(one: string, other: string): number {
  const most = Math.min(one.length, other.length)
  let common = 0
  while (common < most && one.charCodeAt(common) === other.charCodeAt(common)) common++
  return common
}

function summary(values: number[]): { mean: number; p95: number } {
  const sorted = [...values].sort((a, b) => a - b)
  return {
    mean: sorted.reduce((sum, value) => sum + value, 0) / sorted.length,
    p95: sorted[Math.floor(sorted.length * 0.95)]!
  }
}

/** Corral's own decision, with several gateways that take requests at random. */
export function corralRouter(gateways = 1, seed = 1) {
  return (cluster: ClusterView, reasons: Record<string, number>): Router => {
    const dice = new Dice(seed)
    const memories = Array.from({ length: gateways }, () => new PrefixMemory())
    return (_, request, now) => {
      const prefixes = dice.pick(memories)
      const prompt: PromptBlocks = promptBlocks(request, { model: MODEL, owner: 'owner' })
      const choice = chooseNode({ model: MODEL, prompt }, cluster, prefixes, now)
      if (!choice.member) throw new Error(`no member: ${choice.why}`)
      reasons[choice.why] = (reasons[choice.why] ?? 0) + 1
      const { name: member } = choice.member
      prefixes.read({ member, model: MODEL, ...cluster.hosts(MODEL).get(member)!.model }, prompt, now)
      return member
    }
  }
}

export const roundRobin = (cluster: ClusterView): Router => {
  const names = cluster.members().map(({ name }) => name)
  let next = 0
  return () => names[next++ % names.length]!
}

/** Consistent hashing of the conversation (which other routers know only from a header), with 160 points per node. */
export const consistentHash = (cluster: ClusterView): Router => {
  const ring = cluster
    .members()
    .flatMap(({ name }) => Array.from({ length: 160 }, (_, place) => ({ name, at: hashOfName(`${name} ${place}`) })))
    .sort((a, b) => a.at - b.at)
  return ({ conversation }) => {
    const at = hashOfName(`conversation ${conversation}`)
    return (ring.find(place => place.at >= at) ?? ring[0]!).name
  }
}
