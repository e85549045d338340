import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
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
import { Agenda, type Model, type World } from './simulated-world.ts'

export interface SimulatedEngine {
  run: number
  options: LoadOptions
  slots: number
  reserved: MemoryUse
  certain: boolean
  state: 'loading' | 'ready' | 'ending'
  running: Set<number>
}

export interface Client {
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

/** The invariants of the scheduler's decisions, and what the simulation knows of its clients and engines for them. */
export class SchedulerInvariants {
  /** Violated invariants. */
  readonly faults: string[] = []
  /** Counts of events, such as `grant` or `refuse insufficient_memory`. */
  readonly counts: Record<string, number> = {}
  /** The longest wait for room in a calm world, as a share of its limit. */
  longestWait = 0

  protected readonly world: World
  protected readonly agenda = new Agenda()
  protected readonly state: SchedulerState
  protected readonly engines = new Map<string, SimulatedEngine>()
  protected readonly waiting = new Map<number, Client>()
  protected readonly running = new Map<number, Client>()
  /** By key: clients that the last grant passed over for a request with more slots. */
  readonly #passed = new Map<string, ReadonlySet<string>>()
  /** Time since which no request has waited for each load. */
  readonly #unwanted = new Map<string, number>()
  /** Time since which each key has waited for room. */
  readonly #waitsSince = new Map<string, number>()
  /** The event being carried out. */
  protected cause: { event: Event['type']; key: string; id?: number } = { event: 'close', key: '' }
  protected closed = false
  /** The last events before the first violation. */
  readonly #trace: [at: number, mark: string, what: string | Event | Effect][] = []

  constructor(world: World) {
    this.world = world
    this.state = createState(world.limits)
  }

  get trace(): string[] {
    return this.#trace.map(([at, mark, what]) => `${at} ${mark} ${typeof what === 'string' ? what : describe(what)}`)
  }

  protected checkWanted(key: string, what: string): undefined {
    if (![...this.waiting.values()].some(client => client.key === key)) this.fault(`${key} is ${what} for nobody`)
  }

  /** Clients' requests that wait for a model. */
  protected clientsOf(key: string): Client[] {
    return [...this.waiting.values()].filter(client => client.key === key && !client.background)
  }

  /** While a client waits for an engine, no background request runs on it. */
  protected checkIdle(): undefined {
    for (const { key, phase, queue } of this.state.engines.values()) {
      if (!('running' in phase) || queue.clients.length === 0) continue
      for (const [id, { request }] of phase.running) {
        if (request.background) this.fault(`${id} runs on ${key}, which a client waits for`)
      }
    }
  }

  /** Background requests evict no model that clients have used. */
  protected checkEvicted(key: string): undefined {
    const known = this.state.engines.get(key)
    const { pools, budget } = this.world
    const isOver = pools.some(pool => {
      const held = [...this.engines.values()].reduce((sum, { reserved }) => sum + (reserved[pool] ?? 0), 0)
      return held > (budget[pool] ?? held)
    })
    const isForClients = [...this.waiting.values()].some(client => !client.background && client.key !== key)
    if (known?.clients.size && !isOver && !isForClients) this.fault(`${key} is evicted, and no client wants its room`)
  }

  /** Background requests are granted only while no client waits, and leave a slot free if there are other clients. */
  #checkIdleGrant(key: string, { running, slots: all }: SimulatedEngine, { slots }: Client): undefined {
    if (this.state.engines.get(key)!.queue.clients.length > 0) this.fault(`a client waits for ${key} and is passed`)
    const taken = [...running].reduce((sum, id) => sum + Math.min(this.running.get(id)!.slots, all), 0)
    if (running.size > 0 && taken + Math.min(slots, all) >= all) this.fault(`no slot of ${key} is left for clients`)
    this.count('idle')
  }

  /** A load begins only if it is wanted and its reservation fits beside all present engines. */
  protected checkRoom(key: string, plan: { need: MemoryUse; certain: boolean }): undefined {
    const { limits, budget } = this.world
    if (this.closed) this.fault(`${key} is loaded after the end`)
    this.checkWanted(key, 'loaded')
    if (this.engines.size >= limits.maxLoaded) this.fault(`${this.engines.size + 1} engines of ${limits.maxLoaded}`)
    for (const [other, { state, certain }] of this.engines) {
      const alike = this.modelOf(other).groups.some(group => this.modelOf(key).groups.includes(group))
      if (alike && other[0] !== key[0]) this.fault(`${key} and ${other} are of one group`)
      if (state === 'loading' && !(plan.certain && certain)) {
        this.fault(`${key} is loaded beside ${other}, whose need is uncertain`)
      }
    }
    for (const [pool, bytes] of Object.entries(plan.need)) {
      const limit = budget[pool] ?? Number.POSITIVE_INFINITY
      const reserved = [...this.engines.values()].reduce((total, { reserved }) => total + (reserved[pool] ?? 0), 0)
      if (bytes > 0 && reserved + bytes > limit) this.fault(`${key}: ${reserved} + ${bytes} of ${pool} pass ${limit}`)
    }
  }

  /** Evictions interrupt no answer, and pinned models stay. */
  protected checkUnload(key: string, { running }: SimulatedEngine): undefined {
    const answers = [...running].filter(id => !this.running.get(id)!.background)
    if (running.size) this.fault(`${key} is unloaded under ${answers.length} of ${running.size} answers`)
    const { event } = this.cause
    const known = this.state.engines.get(key)
    const own = event === 'stop' && this.cause.key === key
    if (this.modelOf(key).pinned && !own && !this.closed && !(known && getPlan(known)?.reload)) {
      this.fault(`${key} is pinned and was unloaded`)
    }
    const drained = known?.phase.name === 'draining'
    if (event !== 'stop' && !this.closed && !drained && known?.queue.length) this.count('way given')
    else if (this.cause.key !== key && !this.closed) this.count('evicted')
  }

  /** Nobody waits longer than the requests ahead need. */
  protected checkPatience(id: number, { arrivedAt, before, background }: Client): undefined {
    if (background) return
    const allowed = (before + 2) * 2 * this.world.bound
    const waited = this.now - arrivedAt
    if (this.world.calm && waited > allowed) this.fault(`${id} waited ${waited} ms of ${allowed}`)
  }

  /** No client is granted twice in a row while a client with fewer slots waits for no more slots. */
  protected checkTurn(key: string, getEngine: SimulatedEngine, client: Client): undefined {
    if (client.background) return this.#checkIdleGrant(key, getEngine, client)
    const { running, slots } = getEngine
    const { clientId } = client
    const slotsOf = (clientId: string) =>
      [...running].reduce((sum, id) => {
        const other = this.running.get(id)!
        return sum + (other.clientId === clientId && !other.background ? Math.min(other.slots, slots) : 0)
      }, 0)
    const own = slotsOf(clientId)
    const passed = new Set<string>()
    const seen = new Set([clientId])
    const engine = this.state.engines.get(key)!
    for (const request of engine.queue) {
      if (seen.has(request.clientId) || request.background) continue
      seen.add(request.clientId)
      // A request for other options waits until other clients have used the engine as much.
      if (!isIn(engine, 'ready') || !satisfies(engine.phase.options, getWantedOptions(engine, engine.phase, request)))
        continue
      // A request for more slots also waits for slots that are kept free for clients who may return.
      if (request.slots > client.slots) continue
      if (slotsOf(request.clientId) < own) passed.add(request.clientId)
    }
    for (const other of passed) {
      if (this.#passed.get(key)?.has(other))
        this.fault(`${other} waits for ${key} while ${clientId}, which has more, is served`)
      else this.count('passed over')
    }
    this.#passed.set(key, passed)
  }

  /** An unwanted load ends after a while. */
  protected checkUnwanted(): undefined {
    for (const [key, { state }] of this.engines) {
      const wanted = [...this.waiting.values()].some(client => client.key === key)
      if (state !== 'loading' || wanted) {
        this.#unwanted.delete(key)
        continue
      }
      const since = this.#unwanted.get(key) ?? this.now
      this.#unwanted.set(key, since)
      const lasts = this.now - since
      if (lasts > this.world.limits.loadGrace + 10) this.fault(`${key} is loaded for nobody since ${lasts} ms`)
    }
  }

  protected checkSlots(key: string, { slots, running }: SimulatedEngine): undefined {
    const taken = [...running].reduce((sum, id) => sum + Math.min(this.running.get(id)!.slots, slots), 0)
    if (taken > slots) this.fault(`answers of ${key} take ${taken} of ${slots} slots`)
    const most = this.modelOf(key).maxConcurrent ?? Number.POSITIVE_INFINITY
    if (running.size > most) this.fault(`${running.size} answers of ${key}, of which ${most} may be`)
  }

  protected checkWait(key: string, holders: string[]): undefined {
    if (holders.includes(key)) this.fault(`${key} waits for itself`)
    const { bound, calm } = this.world
    const since = this.#waitsSince.get(key)
    if (holders.length && this.clientsOf(key).length > 0) this.#waitsSince.set(key, since ?? this.now)
    else this.#waitsSince.delete(key)
    if (since === undefined || holders.length) return
    const waited = this.now - since
    if (!calm) return
    this.longestWait = Math.max(this.longestWait, waited / bound)
    if (waited > bound) this.fault(`${key} waited ${waited} ms of ${bound} for room`)
  }

  /** If engines exceed the budget, none of them is idle. */
  protected checkSurplus(): undefined {
    const { pools, budget } = this.world
    for (const pool of pools) {
      const staying = [...this.engines].filter(([, { state }]) => state !== 'ending')
      const held = staying.reduce((total, [, { reserved }]) => total + (reserved[pool] ?? 0), 0)
      if (held <= (budget[pool] ?? held)) continue
      for (const [key, { state, running, reserved }] of staying) {
        const wanted = [...this.waiting.values()].some(client => client.key === key)
        if (state === 'ready' && !running.size && !wanted && reserved[pool] && !this.modelOf(key).pinned) {
          this.fault(`${key} is idle while ${held} of ${pool} pass ${budget[pool]}`)
        }
      }
    }
  }

  /** At the end no request waits or runs, and only models that are never unloaded are loaded. */
  protected checkEnd(): undefined {
    if (!this.agenda.isEmpty) this.fault('it never ends')
    for (const [id, { key, background }] of this.waiting) {
      // Room that clients keep forever is never idle.
      if (!background || this.engines.size === 0) this.fault(`${id} waits for ${key} forever`)
    }
    for (const [id, { key }] of this.running) this.fault(`${id} runs on ${key} forever`)
    for (const [key, { state }] of this.engines) {
      if (state !== 'ready') this.fault(`${key} stays ${state}`)
      else if (this.#expires(key)) this.fault(`${key} was never unloaded`)
    }
    for (const { key, phase, failure, queue } of this.state.engines.values()) {
      const waits = queue.length > 0 && queue.clients.length === 0
      if (phase.name !== 'ready' && !failure && !waits) this.fault(`${key} is not forgotten but ${phase.name}`)
    }
  }

  #expires(key: string): boolean {
    // A pinned model may drain for a background request whose options have no room.
    if (this.modelOf(key).pinned) return false
    const engine = this.state.engines.get(key)
    return !engine || !isIn(engine, 'ready') || Number.isFinite(getExpiry(engine))
  }

  protected get now(): number {
    return this.agenda.now
  }

  protected after(delay: number, act: () => void): undefined {
    return this.agenda.after(delay, act)
  }

  protected modelOf(key: string): Model {
    return this.world.models.find(model => model.key === key)!
  }

  protected count(what: string): undefined {
    this.counts[what] = (this.counts[what] ?? 0) + 1
  }

  protected note(mark: string, what: string | Event | Effect): undefined {
    if (this.faults.length) return
    this.#trace.push([this.now, mark, what])
    if (this.#trace.length > 60) this.#trace.shift()
  }

  protected fault(text: string): undefined {
    this.note('FAULT', text)
    this.faults.push(`${this.now}: ${text}`)
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
