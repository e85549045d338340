import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../../core/models/load-options.ts'
import { decide } from '../../../../plugins/running/scheduler/decide.ts'
import { getExpiry, getWantedOptions } from '../../../../plugins/running/scheduler/fair-share.ts'
import {
  createState,
  type Effect,
  type Event,
  getPlan,
  isIn,
  type SchedulerState,
  satisfies
} from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { Agenda, createWorld, Dice, formatName, type Model, takes, type World } from './simulated-world.ts'

interface SimulatedEngine {
  run: number
  options: LoadOptions
  reserved: MemoryUse
  certain: boolean
  state: 'loading' | 'ready' | 'ending'
  running: Set<number>
}

interface Client {
  key: string
  clientId: string
  loadOnly: boolean
  slots: number
  /** A line of a batch. */
  background: boolean
  arrivedAt: number
  /** How many clients waited before it. */
  before: number
}

const crash = new CorralError('engine_crashed', 'crash')
const broken = new CorralError('load_failed', 'broken')
const outOfMemory = new CorralError('insufficient_memory', 'out of memory')
const stopped = new CorralError('model_stopped', 'stopped')
const deleted = new CorralError('model_not_found', 'deleted')

/**
 * Simulates clients, engines, memory and accidents around the scheduler's decisions, with its own clock. It checks the
 * invariants and is the same for the same seed.
 *
 * Events (`arrive`, `interfere`, ends of answers, loads and engines) are sent to `decide`. Its effects are carried out
 * in simulated time (`perform` and the methods below it). `check…` methods verify the invariants.
 */
class Simulation {
  /** Violated invariants. */
  readonly faults: string[] = []
  /** Counts of events, such as `grant` or `refuse insufficient_memory`. */
  readonly counts: Record<string, number> = {}
  /** The longest wait for room in a calm world, as a share of its limit. */
  longestWait = 0

  readonly #dice: Dice
  readonly #world: World
  readonly #agenda = new Agenda()
  readonly #state: SchedulerState
  readonly #engines = new Map<string, SimulatedEngine>()
  readonly #preparing = new Map<string, { run: number; aborted: boolean }>()
  /** The last prepared outcome by key. */
  readonly #prepared = new Map<string, { need: MemoryUse; certain: boolean }>()
  readonly #waiting = new Map<number, Client>()
  readonly #running = new Map<number, Client>()
  readonly #alarms = new Map<string, number>()
  /** By key: clients that the last grant passed over for a request with more slots. */
  readonly #passed = new Map<string, ReadonlySet<string>>()
  /** Time since which no request has waited for each load. */
  readonly #unwanted = new Map<string, number>()
  /** Time since which each key has waited for room. */
  readonly #waitsSince = new Map<string, number>()
  /** The event being carried out. */
  #cause: { event: Event['type']; key: string; id?: number } = { event: 'close', key: '' }
  #ids = 0
  #closed = false
  /** The last events before the first violation. */
  readonly #trace: [at: number, mark: string, what: string | Event | Effect][] = []

  constructor(seed: number) {
    this.#dice = new Dice(seed)
    this.#world = createWorld(this.#dice)
    this.#state = createState(this.#world.limits)
  }

  get trace(): string[] {
    return this.#trace.map(([at, mark, what]) => `${at} ${mark} ${typeof what === 'string' ? what : describe(what)}`)
  }

  /** Sends this many requests with accidents in between, and runs until all events are processed. */
  run(requests = 120): this {
    const dice = this.#dice
    const { calm, bound, budget } = this.#world
    this.#send({ type: 'budget', budget })
    const pace = dice.between(5, 1500)
    let at = 0
    for (let number = 0; number < requests; number++) {
      at += dice.chance(0.3) ? 0 : dice.under(pace)
      this.#after(at, () => this.#arrive())
      if (dice.chance(calm ? 0.01 : 0.06)) this.#after(at + dice.under(pace), () => this.#interfere())
    }
    if (dice.chance(0.1)) {
      this.#after(dice.under(at), () => {
        this.#closed = true
        this.#send({ type: 'close' })
      })
    }
    const horizon = at + (requests + 2) * bound * 2
    for (let clientIds = 0; !this.#agenda.isEmpty && clientIds < 60 * requests && this.faults.length < 3; clientIds++) {
      if (!this.#agenda.step(horizon)) break
    }
    if (!this.faults.length) this.#checkEnd()
    return this
  }

  #arrive(): undefined {
    const dice = this.#dice
    const { models, longest } = this.#world
    const model = dice.chance(0.5) ? models[0]! : dice.pick(models)
    const { key } = model
    const id = ++this.#ids
    const options: Partial<LoadOptions> = dice.chance(0.15)
      ? {
          num_ctx: dice.pick([512, 4096, 8192]),
          ...(dice.chance(0.3) ? { cache_type_k: dice.pick(['f16', 'q8_0']) } : {})
        }
      : {}
    const before = this.#clientsOf(key).length
    const background = dice.chance(0.2)
    const client: Client = {
      key,
      clientId: dice.chance(0.5) ? 'greedy' : dice.pick(['one', 'two', 'three']),
      loadOnly: !background && dice.chance(0.05),
      slots: dice.chance(0.1) ? dice.between(2, 6) : 1,
      background,
      arrivedAt: this.#now,
      before
    }
    this.#ask(id, client, options, background || !dice.chance(0.05) ? undefined : 0)
    if (!dice.chance(0.1)) return
    this.#after(dice.under(2 * longest.answer), () => {
      if (this.#waiting.get(id) === client) this.#waiting.delete(id)
      else if (this.#running.get(id) === client) this.#finish(id)
      else return
      this.#send({ type: 'leave', id, key })
    })
  }

  #ask(id: number, client: Client, options: Partial<LoadOptions>, keepAlive?: number): undefined {
    const { key, clientId, loadOnly, slots, background } = client
    const model = this.#modelOf(key)
    this.#waiting.set(id, client)
    this.#send({
      type: 'request',
      id,
      key,
      clientId,
      name: key,
      options,
      loadOnly,
      slots,
      background,
      defaults: DEFAULT_LOAD_OPTIONS,
      keepAlive,
      configuredKeepAlive: model.keepAlive,
      pinned: model.pinned,
      groups: model.groups,
      elsewhere: false,
      maxConcurrent: model.maxConcurrent
    })
  }

  /** Sends stops, deletions, crashes, and changes of settings and memory. */
  #interfere(): undefined {
    const dice = this.#dice
    const roll = dice.random()
    const { key } = dice.pick(this.#world.models)
    if (roll < 0.4) this.#send({ type: 'stop', key, running: stopped, waiting: stopped, save: true })
    else if (roll < 0.5) this.#send({ type: 'stop', key, running: deleted, waiting: deleted, save: false })
    else if (roll < 0.6) {
      this.#send({ type: 'keep-alive', key, keepAlive: dice.pick([0, 100, Number.POSITIVE_INFINITY]) })
    } else if (roll < 0.7) this.#send({ type: 'alarm', key })
    else if (roll < 0.8 && !this.#world.calm) {
      const budget = Object.entries(this.#world.budget).map(([pool, bytes]) => [
        pool,
        Math.round(bytes * (0.7 + dice.random() * 0.6))
      ])
      this.#world.budget = Object.fromEntries(budget)
      this.#send({ type: 'budget', budget: this.#world.budget })
    } else {
      const engine = this.#engines.get(key)
      if (engine?.state === 'ready') this.#end(key, engine, crash)
    }
  }

  #send(event: Event): undefined {
    this.#cause = { event: event.type, key: 'key' in event ? event.key : '' }
    if ('id' in event) this.#cause.id = event.id
    this.#note('>', event)
    for (const effect of decide(this.#state, event, this.#now)) this.#perform(effect)
    this.#checkSurplus()
    this.#checkUnwanted()
    this.#checkIdle()
    const mayComeTwice = ['loaded', 'gone', 'load-failed', 'prepared', 'alarm', 'leave']
    if (!this.#dice.chance(0.02) || !mayComeTwice.includes(event.type)) return
    this.#note('> again:', event)
    this.#cause.event = event.type
    for (const effect of decide(this.#state, event, this.#now)) this.#perform(effect)
  }

  #perform(effect: Effect): undefined {
    if (effect.type !== 'alarm') {
      this.#note('  ', effect)
      this.#count('error' in effect ? `${effect.type} ${effect.error.code}` : effect.type)
    }
    const engine = 'key' in effect ? this.#engines.get(effect.key) : undefined
    switch (effect.type) {
      case 'prepare':
        return this.#prepare(effect.key, effect.run, effect.options)
      case 'abort-prepare': {
        const work = this.#preparing.get(effect.key)
        if (!work) return this.#fault(`no preparation of ${effect.key} to abort`)
        work.aborted = true
        return
      }
      case 'load':
        return this.#load(effect.key, effect.run, effect.options)
      case 'abort-load':
        if (engine?.state !== 'loading') return this.#fault(`abort without a load of ${effect.key}`)
        engine.state = 'ending'
        return this.#after(this.#dice.between(0, this.#world.longest.stop), () =>
          this.#end(effect.key, engine, stopped)
        )
      case 'unload':
        return this.#unload(effect.key, engine, effect.reason)
      case 'grant':
        return this.#grant(effect.id, effect.key, engine)
      case 'refuse':
        return this.#refuse(effect.id, effect.error)
      case 'revoke':
        return this.#revoke(effect.id, effect.error)
      case 'alarm':
        return this.#alarm(effect.key, effect.at)
      case 'waiting':
        return this.#checkWait(effect.key, effect.holders)
    }
  }

  #prepare(key: string, run: number, options: LoadOptions): undefined {
    if (this.#preparing.has(key)) this.#fault(`${key} is prepared twice`)
    this.#checkWanted(key, 'prepared')
    const work = { run, aborted: false }
    this.#preparing.set(key, work)
    const model = this.#modelOf(key)
    this.#after(this.#dice.between(0, this.#world.longest.prepare), () => {
      this.#preparing.delete(key)
      if (work.aborted || this.#dice.chance(0.01)) {
        return this.#send({ type: 'prepare-failed', key, run, error: work.aborted ? stopped : broken })
      }
      const known = model.learned.get(formatName(options))
      const need = { [model.pool]: known ?? Math.round(takes(model, options) * model.error) }
      const certain = known !== undefined || model.certain
      this.#prepared.set(key, { need, certain })
      this.#send({ type: 'prepared', key, run, need, certain, advice: '' })
    })
  }

  #load(key: string, run: number, options: LoadOptions): undefined {
    const plan = this.#prepared.get(key)
    if (!plan || this.#preparing.has(key)) return this.#fault(`${key} is loaded without being prepared`)
    if (this.#engines.has(key)) return this.#fault(`two engines of ${key}`)
    this.#checkRoom(key, plan)
    const engine: SimulatedEngine = {
      run,
      options,
      reserved: plan.need,
      certain: plan.certain,
      state: 'loading',
      running: new Set()
    }
    this.#engines.set(key, engine)
    const loadTime = this.#dice.between(1, this.#world.longest.load)
    this.#after(loadTime, () => {
      if (engine.state === 'loading' && this.#engines.get(key) === engine)
        this.#endLoad(key, engine, plan.need, loadTime)
    })
  }

  #endLoad(key: string, engine: SimulatedEngine, need: MemoryUse, loadTime: number): undefined {
    const model = this.#modelOf(key)
    const { options, run } = engine
    const really = takes(model, options)
    const others = [...this.#engines]
      .filter(([other, { state }]) => other !== key && this.#modelOf(other).pool === model.pool && state !== 'loading')
      .reduce((total, [other, { options }]) => total + takes(this.#modelOf(other), options), 0)
    // The real memory exceeds the budget by its reserve.
    const physical = (this.#world.budget[model.pool] ?? Number.POSITIVE_INFINITY) * 1.1
    if (really + others > physical) {
      model.learned.set(formatName(options), Math.max(really, need[model.pool]!))
      return this.#end(key, engine, outOfMemory)
    }
    if (this.#dice.chance(0.04)) return this.#end(key, engine, broken)
    engine.state = 'ready'
    model.learned.set(formatName(options), really)
    engine.reserved = { [model.pool]: really }
    this.#send({ type: 'loaded', key, run, use: engine.reserved, loadTime })
    if (this.#dice.chance(0.05)) {
      this.#after(this.#dice.between(0, this.#world.longest.answer), () => this.#end(key, engine, crash))
    }
  }

  #end(key: string, engine: SimulatedEngine, error: CorralError): undefined {
    if (this.#engines.get(key) !== engine) return
    const { run, state } = engine
    this.#engines.delete(key)
    // An aborted load ends with `load-failed`, a ready engine with `gone`.
    if (state === 'loading' || error === stopped) this.#send({ type: 'load-failed', key, run, error })
    else this.#send({ type: 'gone', key, run, ...(state === 'ending' ? {} : { error }) })
  }

  #unload(key: string, engine: SimulatedEngine | undefined, reason: string): undefined {
    if (engine?.state !== 'ready') return this.#fault(`unload without an engine of ${key}`)
    this.#checkUnload(key, engine)
    if (reason === 'evicted') this.#checkEvicted(key)
    engine.state = 'ending'
    this.#after(this.#dice.between(0, this.#world.longest.stop), () => this.#end(key, engine, crash))
  }

  #grant(id: number, key: string, engine: SimulatedEngine | undefined): undefined {
    const client = this.#waiting.get(id)
    if (!client) return this.#fault(`${id} is granted but does not wait`)
    if (engine?.state !== 'ready') return this.#fault(`${id} is granted an engine of ${key} that is not ready`)
    this.#waiting.delete(id)
    this.#checkPatience(id, client)
    if (client.loadOnly) return
    // A background request that yields but keeps its slots, because no other request wants them, takes nothing.
    const keeps = this.#cause.event === 'yield' && this.#cause.id === id && client.background
    if (!keeps) this.#checkTurn(key, engine, client)
    this.#running.set(id, client)
    engine.running.add(id)
    this.#checkSlots(key, engine)
    const { longest } = this.#world
    if (this.#dice.chance(0.1)) this.#after(this.#dice.under(longest.answer), () => this.#yield(id, client))
    this.#after(this.#dice.chance(0.1) ? longest.answer : this.#dice.under(longest.answer), () => {
      if (this.#running.get(id) !== client) return
      this.#finish(id)
      this.#send({ type: 'leave', id, key })
    })
  }

  /** A running request yields. */
  #yield(id: number, client: Client): undefined {
    if (this.#running.get(id) !== client) return
    this.#finish(id)
    const before = this.#clientsOf(client.key).length
    this.#waiting.set(id, { ...client, arrivedAt: this.#now, before })
    this.#count('yield')
    this.#send({ type: 'yield', id, key: client.key })
  }

  #finish(id: number): undefined {
    this.#engines.get(this.#running.get(id)!.key)?.running.delete(id)
    this.#running.delete(id)
  }

  #refuse(id: number, error: CorralError): undefined {
    const client = this.#waiting.get(id)
    if (!client) return this.#fault(`${id} is refused but does not wait`)
    this.#waiting.delete(id)
    if (!this.#world.calm || !/came free/.test(error.message)) return
    this.#fault(`${client.key} got no room in ${this.#world.limits.roomTimeout} ms`)
  }

  #revoke(id: number, error: CorralError): undefined {
    const client = this.#running.get(id)
    if (!client) return this.#fault(`${id} is revoked but does not run`)
    if (client.background && error.details?.displaced) {
      this.#finish(id)
      this.#count('displaced')
      const again = ++this.#ids
      return this.#after(0, () => {
        this.#send({ type: 'leave', id, key: client.key })
        this.#ask(again, { ...client, arrivedAt: this.#now }, {})
      })
    }
    const { event, key } = this.#cause
    const rightly = (event === 'stop' || event === 'gone') && key === client.key
    if (!rightly) this.#fault(`the answer ${id} was lost by ${event}`)
    this.#finish(id)
  }

  #alarm(key: string, at: number | undefined): undefined {
    if (at === undefined) {
      this.#alarms.delete(key)
      return
    }
    if (!Number.isFinite(at)) return this.#fault(`an alarm of ${key} for never`)
    const alarm = this.#agenda.order
    this.#alarms.set(key, alarm)
    this.#after(Math.max(0, at - this.#now) + (this.#dice.chance(0.2) ? this.#dice.under(5) : 0), () => {
      if (this.#alarms.get(key) !== alarm) return
      this.#alarms.delete(key)
      this.#send({ type: 'alarm', key })
    })
  }

  #checkWanted(key: string, what: string): undefined {
    if (![...this.#waiting.values()].some(client => client.key === key)) this.#fault(`${key} is ${what} for nobody`)
  }

  /** Clients' requests that wait for a model. */
  #clientsOf(key: string): Client[] {
    return [...this.#waiting.values()].filter(client => client.key === key && !client.background)
  }

  /** While a client waits for an engine, no background request runs on it. */
  #checkIdle(): undefined {
    for (const { key, phase, queue } of this.#state.engines.values()) {
      if (!('running' in phase) || queue.clients.length === 0) continue
      for (const [id, { request }] of phase.running) {
        if (request.background) this.#fault(`${id} runs on ${key}, which a client waits for`)
      }
    }
  }

  /** Background requests evict no model that clients have used. */
  #checkEvicted(key: string): undefined {
    const known = this.#state.engines.get(key)
    const { pools, budget } = this.#world
    const isOver = pools.some(pool => {
      const held = [...this.#engines.values()].reduce((sum, { reserved }) => sum + (reserved[pool] ?? 0), 0)
      return held > (budget[pool] ?? held)
    })
    const isForClients = [...this.#waiting.values()].some(client => !client.background && client.key !== key)
    if (known?.clients.size && !isOver && !isForClients) this.#fault(`${key} is evicted, and no client wants its room`)
  }

  /** Background requests are granted only while no client waits, and leave a slot free if there are other clients. */
  #checkIdleGrant(key: string, { running, options }: SimulatedEngine, { slots }: Client): undefined {
    if (this.#state.engines.get(key)!.queue.clients.length > 0) this.#fault(`a client waits for ${key} and is passed`)
    const all = options.num_parallel
    const taken = [...running].reduce((sum, id) => sum + Math.min(this.#running.get(id)!.slots, all), 0)
    if (running.size > 0 && taken + Math.min(slots, all) >= all) this.#fault(`no slot of ${key} is left for clients`)
    this.#count('idle')
  }

  /** A load begins only if it is wanted and its reservation fits beside all present engines. */
  #checkRoom(key: string, plan: { need: MemoryUse; certain: boolean }): undefined {
    const { limits, budget } = this.#world
    if (this.#closed) this.#fault(`${key} is loaded after the end`)
    this.#checkWanted(key, 'loaded')
    if (this.#engines.size >= limits.maxLoaded) this.#fault(`${this.#engines.size + 1} engines of ${limits.maxLoaded}`)
    for (const [other, { state, certain }] of this.#engines) {
      const alike = this.#modelOf(other).groups.some(group => this.#modelOf(key).groups.includes(group))
      if (alike && other[0] !== key[0]) this.#fault(`${key} and ${other} are of one group`)
      if (state === 'loading' && !(plan.certain && certain)) {
        this.#fault(`${key} is loaded beside ${other}, whose need is uncertain`)
      }
    }
    for (const [pool, bytes] of Object.entries(plan.need)) {
      const limit = budget[pool] ?? Number.POSITIVE_INFINITY
      const reserved = [...this.#engines.values()].reduce((total, { reserved }) => total + (reserved[pool] ?? 0), 0)
      if (bytes > 0 && reserved + bytes > limit) this.#fault(`${key}: ${reserved} + ${bytes} of ${pool} pass ${limit}`)
    }
  }

  /** Evictions interrupt no answer, and pinned models stay. */
  #checkUnload(key: string, { running }: SimulatedEngine): undefined {
    const answers = [...running].filter(id => !this.#running.get(id)!.background)
    if (running.size) this.#fault(`${key} is unloaded under ${answers.length} of ${running.size} answers`)
    const { event } = this.#cause
    const known = this.#state.engines.get(key)
    const own = event === 'stop' && this.#cause.key === key
    if (this.#modelOf(key).pinned && !own && !this.#closed && !(known && getPlan(known)?.reload)) {
      this.#fault(`${key} is pinned and was unloaded`)
    }
    const drained = known?.phase.name === 'draining'
    if (event !== 'stop' && !this.#closed && !drained && known?.queue.length) this.#count('way given')
    else if (this.#cause.key !== key && !this.#closed) this.#count('evicted')
  }

  /** Nobody waits longer than the requests ahead need. */
  #checkPatience(id: number, { arrivedAt, before, background }: Client): undefined {
    if (background) return
    const allowed = (before + 2) * 2 * this.#world.bound
    const waited = this.#now - arrivedAt
    if (this.#world.calm && waited > allowed) this.#fault(`${id} waited ${waited} ms of ${allowed}`)
  }

  /** No client is granted twice in a row while a client with fewer slots waits. */
  #checkTurn(key: string, getEngine: SimulatedEngine, client: Client): undefined {
    if (client.background) return this.#checkIdleGrant(key, getEngine, client)
    const { running, options } = getEngine
    const { clientId } = client
    const slotsOf = (clientId: string) =>
      [...running].reduce((sum, id) => {
        const other = this.#running.get(id)!
        return (
          sum + (other.clientId === clientId && !other.background ? Math.min(other.slots, options.num_parallel) : 0)
        )
      }, 0)
    const own = slotsOf(clientId)
    const passed = new Set<string>()
    const seen = new Set([clientId])
    const engine = this.#state.engines.get(key)!
    for (const request of engine.queue) {
      if (seen.has(request.clientId) || request.background) continue
      seen.add(request.clientId)
      // A request for other options waits until other clients have used the engine as much.
      if (!isIn(engine, 'ready') || !satisfies(engine.phase.options, getWantedOptions(engine, engine.phase, request)))
        continue
      if (slotsOf(request.clientId) < own) passed.add(request.clientId)
    }
    for (const other of passed) {
      if (this.#passed.get(key)?.has(other))
        this.#fault(`${other} waits for ${key} while ${clientId}, which has more, is served`)
      else this.#count('passed over')
    }
    this.#passed.set(key, passed)
  }

  /** An unwanted load ends after a while. */
  #checkUnwanted(): undefined {
    for (const [key, { state }] of this.#engines) {
      const wanted = [...this.#waiting.values()].some(client => client.key === key)
      if (state !== 'loading' || wanted) {
        this.#unwanted.delete(key)
        continue
      }
      const since = this.#unwanted.get(key) ?? this.#now
      this.#unwanted.set(key, since)
      const lasts = this.#now - since
      if (lasts > this.#world.limits.loadGrace + 10) this.#fault(`${key} is loaded for nobody since ${lasts} ms`)
    }
  }

  #checkSlots(key: string, { options, running }: SimulatedEngine): undefined {
    const slots = options.num_parallel
    const taken = [...running].reduce((sum, id) => sum + Math.min(this.#running.get(id)!.slots, slots), 0)
    if (taken > slots) this.#fault(`answers of ${key} take ${taken} of ${slots} slots`)
    const most = this.#modelOf(key).maxConcurrent ?? Number.POSITIVE_INFINITY
    if (running.size > most) this.#fault(`${running.size} answers of ${key}, of which ${most} may be`)
  }

  #checkWait(key: string, holders: string[]): undefined {
    if (holders.includes(key)) this.#fault(`${key} waits for itself`)
    const { bound, calm } = this.#world
    const since = this.#waitsSince.get(key)
    if (holders.length && this.#clientsOf(key).length > 0) this.#waitsSince.set(key, since ?? this.#now)
    else this.#waitsSince.delete(key)
    if (since === undefined || holders.length) return
    const waited = this.#now - since
    if (!calm) return
    this.longestWait = Math.max(this.longestWait, waited / bound)
    if (waited > bound) this.#fault(`${key} waited ${waited} ms of ${bound} for room`)
  }

  /** If engines exceed the budget, none of them is idle. */
  #checkSurplus(): undefined {
    const { pools, budget } = this.#world
    for (const pool of pools) {
      const staying = [...this.#engines].filter(([, { state }]) => state !== 'ending')
      const held = staying.reduce((total, [, { reserved }]) => total + (reserved[pool] ?? 0), 0)
      if (held <= (budget[pool] ?? held)) continue
      for (const [key, { state, running, reserved }] of staying) {
        const wanted = [...this.#waiting.values()].some(client => client.key === key)
        if (state === 'ready' && !running.size && !wanted && reserved[pool] && !this.#modelOf(key).pinned) {
          this.#fault(`${key} is idle while ${held} of ${pool} pass ${budget[pool]}`)
        }
      }
    }
  }

  /** At the end no request waits or runs, and only models that are never unloaded are loaded. */
  #checkEnd(): undefined {
    if (!this.#agenda.isEmpty) this.#fault('it never ends')
    for (const [id, { key, background }] of this.#waiting) {
      // Room that clients keep forever is never idle.
      if (!background || this.#engines.size === 0) this.#fault(`${id} waits for ${key} forever`)
    }
    for (const [id, { key }] of this.#running) this.#fault(`${id} runs on ${key} forever`)
    for (const [key, { state }] of this.#engines) {
      if (state !== 'ready') this.#fault(`${key} stays ${state}`)
      else if (this.#expires(key)) this.#fault(`${key} was never unloaded`)
    }
    for (const { key, phase, failure, queue } of this.#state.engines.values()) {
      const waits = queue.length > 0 && queue.clients.length === 0
      if (phase.name !== 'ready' && !failure && !waits) this.#fault(`${key} is not forgotten but ${phase.name}`)
    }
  }

  #expires(key: string): boolean {
    // A pinned model may drain for a background request whose options have no room.
    if (this.#modelOf(key).pinned) return false
    const engine = this.#state.engines.get(key)
    return !engine || !isIn(engine, 'ready') || Number.isFinite(getExpiry(engine))
  }

  get #now(): number {
    return this.#agenda.now
  }

  #after(delay: number, act: () => void): undefined {
    return this.#agenda.after(delay, act)
  }

  #modelOf(key: string): Model {
    return this.#world.models.find(model => model.key === key)!
  }

  #count(what: string): undefined {
    this.counts[what] = (this.counts[what] ?? 0) + 1
  }

  #note(mark: string, what: string | Event | Effect): undefined {
    if (this.faults.length) return
    this.#trace.push([this.#now, mark, what])
    if (this.#trace.length > 60) this.#trace.shift()
  }

  #fault(text: string): undefined {
    this.#note('FAULT', text)
    this.faults.push(`${this.#now}: ${text}`)
  }
}

function describe(happening: Event | Effect): string {
  const { type } = happening
  const key = 'key' in happening ? ` ${happening.key}` : ''
  const id = 'id' in happening ? ` ${happening.id}` : ''
  const more: Record<string, unknown> = {}
  for (const name of ['run', 'need', 'use', 'certain', 'budget', 'holders', 'loadOnly'] as const) {
    const value = (happening as Record<string, unknown>)[name]
    if (value !== undefined && value !== false) more[name] = value
  }
  if ('options' in happening) more.options = `${happening.options.num_ctx}/${happening.options.cache_type_k}`
  if ('error' in happening && happening.error) more.error = happening.error.code
  return `${type}${key}${id} ${JSON.stringify(more)}`
}

/** Runs the seeds from `first` on, and reports the first violation with its trace. */
export function simulateMany(
  first: number,
  count: number
): { report: string | undefined; counts: Record<string, number>; longestWait: number } {
  const counts: Record<string, number> = {}
  let longestWait = 0
  for (let seed = first; seed < first + count; seed++) {
    const run = new Simulation(seed).run()
    for (const [what, times] of Object.entries(run.counts)) counts[what] = (counts[what] ?? 0) + times
    longestWait = Math.max(longestWait, run.longestWait)
    if (run.faults.length) {
      return { report: `seed ${seed}: ${run.faults.join('; ')}\n${run.trace.join('\n')}`, counts, longestWait }
    }
  }
  return { report: undefined, counts, longestWait }
}
