import {
  type Choice,
  ClusterView,
  chooseNode,
  type NodeModel,
  type NodeView
} from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import { type PlanStep, planReplicas } from '../../../../../plugins/machines/cluster/placement/plan-replicas.ts'
import { PrefixMemory, promptBlocks } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'
import {
  decideReplicas,
  type ReplicaBounds,
  type ReplicaState
} from '../../../../../plugins/machines/cluster/placement/replica-count.ts'
import { Agenda, Dice } from '../../../running/scheduler/simulated-world.ts'

const SECOND = 1000
const MINUTE = 60 * SECOND

/** A node's true state. */
interface Node {
  name: string
  up: boolean
  draining: boolean
  slots: number
  budget: number
  models: Map<string, RealModel>
}

interface RealModel {
  state: NodeModel['state']
  /** Whether it uses its memory. A load that waits for room uses none yet. */
  holds: boolean
  running: Set<Request>
  queue: Request[]
  usedAt: number
}

interface Request {
  model: string
  contents: string[]
  owner: string
  session: string | undefined
  gateway: Gateway
  tried: Set<string>
  done: (answered: boolean) => void
}

/** A gateway's view, which is delayed. */
interface Gateway {
  cluster: ClusterView
  prefixes: PrefixMemory
}

interface Replicas {
  state: ReplicaState
  bounds: ReplicaBounds
  /** Nodes on which it was loaded as a replica rather than for a request. */
  own: Set<string>
  grownAt: number
  shrunkAt: number
  alarm: number | undefined
}

/**
 * Simulates a cluster around the decisions, with its own clock. Nodes join, die, drain, load and evict. Long
 * conversations arrive at one or two gateways, which learn of events with a delay. The simulation checks the
 * invariants, and the same seed always gives the same run.
 */
class Simulation {
  readonly faults: string[] = []
  readonly counts: Record<string, number> = {}

  readonly #dice: Dice
  readonly #agenda = new Agenda()
  readonly #nodes = new Map<string, Node>()
  readonly #fronts: Gateway[]
  readonly #models: { key: string; size: number; replicas: Replicas }[]
  #open = 0
  #names = 0

  constructor(seed: number) {
    const dice = new Dice(seed)
    this.#dice = dice
    this.#fronts = Array.from({ length: dice.between(1, 2) }, () => ({
      cluster: new ClusterView(),
      prefixes: new PrefixMemory(dice.pick([10, 100_000]))
    }))
    this.#models = Array.from({ length: dice.between(1, 3) }, (_, index) => ({
      key: `model-${index}#chat`,
      size: dice.between(1, 5),
      replicas: {
        state: {},
        bounds: { min: dice.pick([0, 0, 1, 2]), max: dice.pick([1, 2, 9]), cooldown: 5 * MINUTE },
        own: new Set(),
        grownAt: Number.NEGATIVE_INFINITY,
        shrunkAt: Number.NEGATIVE_INFINITY,
        alarm: undefined
      }
    }))
    for (const {
      replicas: { bounds }
    } of this.#models)
      bounds.max = Math.max(bounds.min, bounds.max)
  }

  run(): this {
    const dice = this.#dice
    for (let number = dice.between(1, 6); number > 0; number--) this.#join()
    const conversations = dice.between(2, 12)
    const within = dice.pick([2 * SECOND, MINUTE, 20 * MINUTE])
    for (let number = 0; number < conversations; number++) this.#after(dice.under(within), () => this.#converse())
    for (let number = dice.under(16); number > 0; number--) this.#after(dice.under(within), () => this.#interfere())
    for (let steps = 0; !this.#agenda.isEmpty && this.faults.length < 3; steps++) {
      if (steps > 50_000) this.#fault('it never ends')
      if (!this.#agenda.step(30 * 24 * 60 * MINUTE)) break
    }
    if (this.#open) this.#fault(`${this.#open} requests were never answered`)
    for (const { prefixes } of this.#fronts) {
      for (const name of this.#nodes.keys()) prefixes.forget(name)
      if (prefixes.size.digests) this.#fault('digests are left of members that have gone')
    }
    return this
  }

  #converse(): undefined {
    const dice = this.#dice
    const { key } = dice.pick(this.#models)
    const words = (most: number) => Array.from({ length: dice.between(1, most) }, () => dice.under(1e6)).join(' ')
    const contents = dice.chance(0.5) ? ['instructions that all share '.repeat(20)] : []
    const owner = dice.pick(['anna', 'ben'])
    const session = dice.chance(0.2) ? `${dice.under(5)}` : undefined
    let turns = dice.between(1, 6)
    const ask = (): undefined => {
      contents.push(words(60))
      this.#open++
      const done = (answered: boolean) => {
        this.#open--
        this.#count(answered ? 'answered' : 'refused')
        contents.push(words(60))
        if (--turns > 0) this.#after(dice.under(20 * SECOND), ask)
      }
      const gateway = dice.pick(this.#fronts)
      this.#place({ model: key, contents: [...contents], owner, session, gateway, tried: new Set(), done })
    }
    return ask()
  }

  #place(request: Request): undefined {
    const { model, contents, owner, session, gateway, tried } = request
    const { cluster, prefixes } = gateway
    const messages = contents.map((content, index) => ({ role: index % 2 ? 'assistant' : 'user', content }))
    const prompt = promptBlocks({ messages }, { model, owner, session })
    const choice = chooseNode({ model, prompt, tried }, cluster, prefixes, this.#agenda.now)
    this.#check(choice, request)
    this.#count(choice.why)
    if (!choice.member) {
      request.done(false)
      return
    }
    const { member } = choice
    const known = member.models.get(model)
    if (known) known.queued++
    const reader = known?.slots ? known : { slots: 4, context: 256 }
    prefixes.read({ member: member.name, model, ...reader }, prompt, this.#agenda.now)
    this.#after(this.#dice.under(20), () => this.#arrive(request, member.name))
  }

  /** Checks the invariants of a choice against the view of the gateway. */
  #check(choice: Choice, { model, tried, gateway: { cluster } }: Request): undefined {
    const isOpen = ({ name, state }: NodeView) => state === 'up' && !tried.has(name)
    const hosts = cluster.hosts(model).all.filter(host => isOpen(host.member))
    const load = (known: NodeModel) => known.running + known.queued
    const free = hosts.filter(host => host.model.state === 'loaded' && load(host.model) < host.model.slots)
    const { member, why } = choice
    if (!member) {
      if (hosts.some(host => host.model.state !== 'stored')) this.#fault(`${why}, though it is loaded somewhere`)
      return
    }
    const chosen = member.models.get(model)
    if (!isOpen(member)) this.#fault(`${member.name} is ${member.state} or was tried`)
    if (why === 'load' ? chosen?.state !== 'stored' : why === 'fetch' ? chosen : !chosen || chosen.state === 'stored') {
      this.#fault(`${why} at ${member.name}, where it is ${chosen?.state}`)
    }
    if (choice.from && (choice.from === member || !choice.from.models.has(model) || choice.from.state === 'away')) {
      this.#fault(`nothing can be fetched from ${choice.from.name}`)
    }
    if (free.length && !free.some(host => host.member === member)) this.#fault('it waits while a slot is free')
    if (free.length || !chosen) return
    // Queues of equal nodes differ by at most a round.
    const shortest = Math.min(
      ...hosts.filter(host => host.model.state === 'loaded').map(host => load(host.model) / host.model.slots)
    )
    if (chosen.state === 'loaded' && load(chosen) / chosen.slots > shortest + 2)
      this.#fault('its queue is far longer than another one')
  }

  #arrive(request: Request, name: string): undefined {
    const node = this.#nodes.get(name)
    if (!node?.up || node.draining) {
      request.tried.add(name)
      this.#count('tried elsewhere')
      return this.#place(request)
    }
    let model = node.models.get(request.model)
    if (!model) {
      // The model is being fetched.
      model = storedModel(this.#agenda.now)
      node.models.set(request.model, model)
    }
    model.queue.push(request)
    if (model.state === 'stored') this.#load(node, request.model)
    else this.#serve(node, request.model)
  }

  #serve(node: Node, key: string): undefined {
    const model = node.models.get(key)!
    while (model.state === 'loaded' && model.queue.length && model.running.size < node.slots) {
      const request = model.queue.shift()!
      model.running.add(request)
      this.#after(this.#dice.between(100, 8000), () => {
        if (!model.running.delete(request)) return
        model.usedAt = this.#agenda.now
        this.#serve(node, key)
        request.done(true)
      })
    }
    return this.#tell(node)
  }

  #join(name = `node-${++this.#names}`): undefined {
    const dice = this.#dice
    const models = new Map(this.#models.filter(() => dice.chance(0.4)).map(({ key }) => [key, storedModel()]))
    const [slots, budget] = [dice.between(1, 4), dice.between(4, 8)]
    const node: Node = { name, up: true, draining: false, slots, budget, models }
    this.#nodes.set(name, node)
    return this.#tell(node)
  }

  #interfere(): undefined {
    const dice = this.#dice
    const node = dice.pick([...this.#nodes.values()])
    const what = dice.pick(['join', 'die', 'drain', 'return', 'unload'])
    this.#count(what)
    switch (what) {
      case 'join':
        return this.#join()
      case 'die':
        return this.#die(node)
      case 'drain':
        node.draining = true
        this.#after(dice.under(MINUTE), () => this.#die(node))
        return this.#tell(node)
      case 'return':
        return node.up ? undefined : this.#join(node.name)
      case 'unload':
        for (const key of node.models.keys()) this.#unload(node, key)
    }
  }

  #die(node: Node): undefined {
    if (!node.up) return
    node.up = false
    for (const [key, model] of node.models) {
      const open = [...model.running, ...model.queue]
      Object.assign(model, storedModel(model.usedAt))
      for (const { prefixes } of this.#fronts) prefixes.forget(node.name, key)
      // Started requests are reported as failed. The others go to another node.
      for (const request of open) {
        request.tried.add(node.name)
        this.#count('tried elsewhere')
        this.#after(0, () => this.#place(request))
      }
    }
    return this.#tell(node)
  }

  /** @param evicts whether others are evicted for it, and whether it waits for room */
  #load(node: Node, key: string, evicts = true): undefined {
    const model = node.models.get(key)!
    const { size } = this.#models.find(other => other.key === key)!
    const others = [...node.models].filter(([other, { holds }]) => other !== key && holds)
    const taken = others.reduce((sum, [other]) => sum + this.#models.find(each => each.key === other)!.size, 0)
    if (taken + size > node.budget && !evicts) return
    model.state = 'loading'
    if (taken + size > node.budget) {
      const [idle] = others.find(([, other]) => isIdle(other)) ?? []
      if (idle !== undefined) {
        this.#count('evict')
        this.#unload(node, idle)
      }
      this.#after(SECOND, () => model.state === 'loading' && !model.holds && this.#load(node, key))
      return this.#tell(node)
    }
    model.holds = true
    this.#count('loads')
    this.#after(this.#dice.between(100, 20_000), () => {
      if (model.state !== 'loading' || !model.holds) return
      model.state = 'loaded'
      model.usedAt = this.#agenda.now
      this.#serve(node, key)
    })
    return this.#tell(node)
  }

  #unload(node: Node, key: string): undefined {
    const model = node.models.get(key)!
    if (!isIdle(model)) return
    Object.assign(model, { state: 'stored', holds: false })
    for (const { prefixes } of this.#fronts) prefixes.forget(node.name, key)
    return this.#tell(node)
  }

  /** Reports a node's state to the gateways, one after the other. */
  #tell(node: Node): undefined {
    const models = [...node.models].map(([key, { state, running, queue, usedAt }]): [string, NodeModel] => [
      key,
      {
        state,
        size: this.#models.find(other => other.key === key)!.size,
        slots: state === 'loaded' ? node.slots : 0,
        context: 256,
        running: running.size,
        queued: queue.length,
        usedAt
      }
    ])
    const reserved = models.reduce((sum, [key, { size }]) => sum + (node.models.get(key)!.holds ? size : 0), 0)
    const view: NodeView = {
      name: node.name,
      state: node.up ? (node.draining ? 'draining' : 'up') : 'away',
      models: new Map(models),
      memory: [{ pool: 'host', reserved, budget: node.budget }]
    }
    this.#fronts.forEach(({ cluster }, index) => {
      this.#after(10 + 40 * index, () => {
        cluster.set({ ...view, models: new Map([...view.models].map(([key, known]) => [key, { ...known }])) })
        if (index === 0) this.#adjust()
      })
    })
  }

  /** Plans the replicas of all models as the first gateway sees them. */
  #adjust(): undefined {
    const { cluster } = this.#fronts[0]!
    const now = this.#agenda.now
    const demands = this.#models.map(({ key, size, replicas }) => {
      const { bounds, own } = replicas
      const hosts = cluster.hosts(key).all.filter(({ member }) => member.state === 'up')
      const inState = (state: string) => hosts.filter(({ model }) => model.state === state)
      const loaded = inState('loaded')
      const sum = (number: (model: NodeModel) => number) => hosts.reduce((total, { model }) => total + number(model), 0)
      const present = loaded.length + inState('loading').length
      const decision = decideReplicas(
        replicas.state,
        {
          loaded: loaded.length,
          loading: present - loaded.length,
          slots: sum(({ slots }) => slots),
          free: sum(({ slots, running, queued }) => (queued ? 0 : slots - running)),
          running: sum(({ running }) => running),
          queued: sum(({ queued }) => queued)
        },
        bounds,
        now
      )
      replicas.state = decision.state
      if (decision.at !== undefined && decision.at !== replicas.alarm) {
        replicas.alarm = decision.at
        this.#after(decision.at - now, () => this.#adjust())
      }
      const { wanted, why } = decision
      if (wanted > Math.max(bounds.max, present)) this.#fault(`${wanted} replicas are too many`)
      const idle = loaded.filter(({ model }) => model.running + model.queued === 0)
      const names = (some: typeof hosts) => new Set(some.map(({ member }) => member.name))
      const planned = {
        ...{ key, wanted, min: bounds.min, size, copies: 0, loads: new Set<string>(), avoid: new Set<string>() },
        needed: why === 'queue' ? wanted : Math.min(wanted, Math.max(bounds.min, loaded.length > 0 ? 1 : 0)),
        spare: names(idle.filter(({ member }) => own.has(member.name))),
        quiet: names(
          idle.filter(({ member, model }) => {
            return (bounds.min > 0 || own.has(member.name)) && now - (model.usedAt ?? 0) > MINUTE
          })
        )
      }
      return { key, replicas, why, planned }
    })
    const models = demands.map(({ planned }) => planned)
    const plan = planReplicas(models, cluster)
    this.#checkPlan(plan.placed, cluster)
    const again = planReplicas(models.toReversed(), cluster)
    if (JSON.stringify(again.steps) !== JSON.stringify(plan.steps))
      this.#fault('the plan depends on the order of models')
    for (const step of plan.steps) {
      const { replicas, why } = demands.find(({ key }) => key === step.model)!
      if (step.waits || step.action === 'copy') continue
      if (step.action === 'load') this.#grow(step, replicas, why)
      else this.#shrink(step, replicas)
    }
  }

  /** Checks that no node gets more than it has room for, or a model twice. */
  #checkPlan(placed: ReadonlyMap<string, readonly string[]>, cluster: ClusterView): void {
    for (const [key, names] of placed) {
      if (new Set(names).size < names.length) this.#fault(`${key} is placed twice on a node`)
      for (const name of names) {
        const { memory, models } = cluster.get(name)!
        const bytes = (wanted: string) => this.#models.find(other => other.key === wanted)!.size
        const all = [...placed]
          .filter(([, others]) => others.includes(name))
          .reduce((sum, [each]) => sum + bytes(each), 0)
        const isNew = models.get(key)?.state !== 'loaded' && models.get(key)?.state !== 'loading'
        if (isNew && all > memory[0]!.budget!) this.#fault(`${name} has no room for ${key}`)
      }
    }
  }

  #grow({ model: key, member, from }: PlanStep, replicas: Replicas, why: string): undefined {
    const now = this.#agenda.now
    const node = this.#nodes.get(member)!
    if (from !== undefined) return
    if (why === 'queue' && now - replicas.shrunkAt < 2 * SECOND)
      this.#fault('one is loaded right after one was unloaded')
    const model = node.models.get(key)
    if (model?.state !== 'stored') return
    const evictions = this.counts.evict ?? 0
    this.#load(node, key, false)
    if ((this.counts.evict ?? 0) > evictions) this.#fault('another model was unloaded for one more replica')
    if (node.models.get(key)!.state !== 'loading') return
    replicas.own.add(node.name)
    replicas.grownAt = now
    this.#count('grow')
  }

  #shrink({ model: key, member, for: other }: PlanStep, replicas: Replicas): undefined {
    const now = this.#agenda.now
    const node = this.#nodes.get(member)!
    if (!isIdle(node.models.get(key)!)) return
    const isMove = other !== undefined
    if (!isMove && now - replicas.grownAt < 5 * MINUTE) this.#fault('one is unloaded soon after one was loaded')
    const loaded = this.#fronts[0]!.cluster.hosts(key).all.filter(
      ({ member, model }) => member.state === 'up' && model.state === 'loaded'
    )
    if (loaded.length <= Math.max(1, replicas.bounds.min)) this.#fault('fewer than the minimum, or none')
    if (!isMove) replicas.shrunkAt = now
    replicas.own.delete(member)
    this.#count(isMove ? 'move' : 'shrink')
    this.#unload(node, key)
  }

  #after(delay: number, act: () => void): undefined {
    return this.#agenda.after(delay, act)
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1
  }

  #fault(text: string): undefined {
    this.faults.push(`${this.#agenda.now}: ${text}`)
  }
}

const storedModel = (usedAt = 0): RealModel => {
  return { state: 'stored', holds: false, running: new Set(), queue: [], usedAt }
}
const isIdle = ({ state, running, queue }: RealModel) => state === 'loaded' && !running.size && !queue.length

/** Runs the seeds from `first` on, and reports the first violation. */
export function simulateMany(first: number, count: number) {
  const counts: Record<string, number> = {}
  for (let seed = first; seed < first + count; seed++) {
    const run = new Simulation(seed).run()
    for (const [what, times] of Object.entries(run.counts)) counts[what] = (counts[what] ?? 0) + times
    if (run.faults.length) return { report: `seed ${seed}: ${run.faults.join('; ')}`, counts }
  }
  return { report: undefined, counts }
}
