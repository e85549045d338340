import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../../core/models/load-options.ts'
import { decide } from '../../../../plugins/running/scheduler/decide.ts'
import type { Effect, Event } from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { type Client, SchedulerInvariants, type SimulatedEngine } from './scheduler-invariants.ts'
import { createWorld, Dice, formatName, takes } from './simulated-world.ts'

const crash = new CorralError('engine_crashed', 'crash')
const broken = new CorralError('load_failed', 'broken')
const outOfMemory = new CorralError('insufficient_memory', 'out of memory')
const stopped = new CorralError('model_stopped', 'stopped')
const deleted = new CorralError('model_not_found', 'deleted')

/**
 * Simulates clients, engines, memory and accidents around the scheduler's decisions, with its own clock. It is the same
 * for the same seed.
 *
 * Events (`arrive`, `interfere`, ends of answers, loads and engines) are sent to `decide`. Its effects are carried out
 * in simulated time (`perform` and the methods below it).
 */
class Simulation extends SchedulerInvariants {
  readonly #dice: Dice
  readonly #preparing = new Map<string, { run: number; aborted: boolean }>()
  /** The last prepared outcome by key. */
  readonly #prepared = new Map<string, { need: MemoryUse; certain: boolean }>()
  readonly #alarms = new Map<string, number>()
  #ids = 0

  constructor(seed: number) {
    const dice = new Dice(seed)
    super(createWorld(dice))
    this.#dice = dice
  }

  /** Sends this many requests with accidents in between, and runs until all events are processed. */
  run(requests = 120): this {
    const dice = this.#dice
    const { calm, bound, budget } = this.world
    this.#send({ type: 'budget', budget })
    const pace = dice.between(5, 1500)
    let at = 0
    for (let number = 0; number < requests; number++) {
      at += dice.chance(0.3) ? 0 : dice.under(pace)
      this.after(at, () => this.#arrive())
      if (dice.chance(calm ? 0.01 : 0.06)) this.after(at + dice.under(pace), () => this.#interfere())
    }
    if (dice.chance(0.1)) {
      this.after(dice.under(at), () => {
        this.closed = true
        this.#send({ type: 'close' })
      })
    }
    const horizon = at + (requests + 2) * bound * 2
    for (let clientIds = 0; !this.agenda.isEmpty && clientIds < 60 * requests && this.faults.length < 3; clientIds++) {
      if (!this.agenda.step(horizon)) break
    }
    if (!this.faults.length) this.checkEnd()
    return this
  }

  #arrive(): undefined {
    const dice = this.#dice
    const { models, longest } = this.world
    const model = dice.chance(0.5) ? models[0]! : dice.pick(models)
    const { key } = model
    const id = ++this.#ids
    const options: Partial<LoadOptions> =
      model.slots === undefined && dice.chance(0.15)
        ? {
            num_ctx: dice.pick([512, 4096, 8192]),
            ...(dice.chance(0.3) ? { cache_type_k: dice.pick(['f16', 'q8_0']) } : {})
          }
        : {}
    const before = this.clientsOf(key).length
    const background = dice.chance(0.2)
    const client: Client = {
      key,
      clientId: dice.chance(0.5) ? 'greedy' : dice.pick(['one', 'two', 'three']),
      loadOnly: !background && dice.chance(0.05),
      slots: dice.chance(0.1) ? dice.between(2, 6) : 1,
      background,
      arrivedAt: this.now,
      before
    }
    this.#ask(id, client, options, background || !dice.chance(0.05) ? undefined : 0)
    if (!dice.chance(0.1)) return
    this.after(dice.under(2 * longest.answer), () => {
      if (this.waiting.get(id) === client) this.waiting.delete(id)
      else if (this.running.get(id) === client) this.#finish(id)
      else return
      this.#send({ type: 'leave', id, key })
    })
  }

  #ask(id: number, client: Client, options: Partial<LoadOptions>, keepAlive?: number, continues?: boolean): undefined {
    const { key, clientId, loadOnly, slots, background } = client
    const model = this.modelOf(key)
    this.waiting.set(id, client)
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
      continues,
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
    const { key } = dice.pick(this.world.models)
    if (roll < 0.4) this.#send({ type: 'stop', key, running: stopped, waiting: stopped, save: true })
    else if (roll < 0.5) this.#send({ type: 'stop', key, running: deleted, waiting: deleted, save: false })
    else if (roll < 0.6) {
      this.#send({ type: 'keep-alive', key, keepAlive: dice.pick([0, 100, Number.POSITIVE_INFINITY]) })
    } else if (roll < 0.7) this.#send({ type: 'alarm', key })
    else if (roll < 0.8 && !this.world.calm) {
      const budget = Object.entries(this.world.budget).map(([pool, bytes]) => [
        pool,
        Math.round(bytes * (0.7 + dice.random() * 0.6))
      ])
      this.world.budget = Object.fromEntries(budget)
      this.#send({ type: 'budget', budget: this.world.budget })
    } else {
      const engine = this.engines.get(key)
      if (engine?.state === 'ready') this.#end(key, engine, crash)
    }
  }

  #send(event: Event): undefined {
    this.cause = { event: event.type, key: 'key' in event ? event.key : '' }
    if ('id' in event) this.cause.id = event.id
    this.note('>', event)
    for (const effect of decide(this.state, event, this.now)) this.#perform(effect)
    this.checkSurplus()
    this.checkUnwanted()
    this.checkIdle()
    const mayComeTwice = ['loaded', 'gone', 'load-failed', 'prepared', 'alarm', 'leave']
    if (!this.#dice.chance(0.02) || !mayComeTwice.includes(event.type)) return
    this.note('> again:', event)
    this.cause.event = event.type
    for (const effect of decide(this.state, event, this.now)) this.#perform(effect)
  }

  #perform(effect: Effect): undefined {
    if (effect.type !== 'alarm') {
      this.note('  ', effect)
      this.count('error' in effect ? `${effect.type} ${effect.error.code}` : effect.type)
    }
    const engine = 'key' in effect ? this.engines.get(effect.key) : undefined
    switch (effect.type) {
      case 'prepare':
        return this.#prepare(effect.key, effect.run, effect.options)
      case 'abort-prepare': {
        const work = this.#preparing.get(effect.key)
        if (!work) return this.fault(`no preparation of ${effect.key} to abort`)
        work.aborted = true
        return
      }
      case 'load':
        return this.#load(effect.key, effect.run, effect.options)
      case 'abort-load':
        if (engine?.state !== 'loading') return this.fault(`abort without a load of ${effect.key}`)
        engine.state = 'ending'
        return this.after(this.#dice.between(0, this.world.longest.stop), () => this.#end(effect.key, engine, stopped))
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
        return this.checkWait(effect.key, effect.holders)
    }
  }

  #prepare(key: string, run: number, options: LoadOptions): undefined {
    if (this.#preparing.has(key)) this.fault(`${key} is prepared twice`)
    this.checkWanted(key, 'prepared')
    const work = { run, aborted: false }
    this.#preparing.set(key, work)
    const model = this.modelOf(key)
    this.after(this.#dice.between(0, this.world.longest.prepare), () => {
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
    if (!plan || this.#preparing.has(key)) return this.fault(`${key} is loaded without being prepared`)
    if (this.engines.has(key)) return this.fault(`two engines of ${key}`)
    this.checkRoom(key, plan)
    const engine: SimulatedEngine = {
      run,
      options,
      slots: this.modelOf(key).slots ?? options.num_parallel,
      reserved: plan.need,
      certain: plan.certain,
      state: 'loading',
      running: new Set()
    }
    this.engines.set(key, engine)
    const loadTime = this.#dice.between(1, this.world.longest.load)
    this.after(loadTime, () => {
      if (engine.state === 'loading' && this.engines.get(key) === engine)
        this.#endLoad(key, engine, plan.need, loadTime)
    })
  }

  #endLoad(key: string, engine: SimulatedEngine, need: MemoryUse, loadTime: number): undefined {
    const model = this.modelOf(key)
    const { options, run } = engine
    const really = takes(model, options)
    const others = [...this.engines]
      .filter(([other, { state }]) => other !== key && this.modelOf(other).pool === model.pool && state !== 'loading')
      .reduce((total, [other, { options }]) => total + takes(this.modelOf(other), options), 0)
    // The real memory exceeds the budget by its reserve.
    const physical = (this.world.budget[model.pool] ?? Number.POSITIVE_INFINITY) * 1.1
    if (really + others > physical) {
      model.learned.set(formatName(options), Math.max(really, need[model.pool]!))
      return this.#end(key, engine, outOfMemory)
    }
    if (this.#dice.chance(0.04)) return this.#end(key, engine, broken)
    engine.state = 'ready'
    model.learned.set(formatName(options), really)
    engine.reserved = { [model.pool]: really }
    this.#send({ type: 'loaded', key, run, use: engine.reserved, loadTime, slots: engine.slots })
    if (this.#dice.chance(0.05)) {
      this.after(this.#dice.between(0, this.world.longest.answer), () => this.#end(key, engine, crash))
    }
  }

  #end(key: string, engine: SimulatedEngine, error: CorralError): undefined {
    if (this.engines.get(key) !== engine) return
    const { run, state } = engine
    this.engines.delete(key)
    // An aborted load ends with `load-failed`, a ready engine with `gone`.
    if (state === 'loading' || error === stopped) this.#send({ type: 'load-failed', key, run, error })
    else this.#send({ type: 'gone', key, run, ...(state === 'ending' ? {} : { error }) })
  }

  #unload(key: string, engine: SimulatedEngine | undefined, reason: string): undefined {
    if (engine?.state !== 'ready') return this.fault(`unload without an engine of ${key}`)
    this.checkUnload(key, engine)
    if (reason === 'evicted') this.checkEvicted(key)
    engine.state = 'ending'
    this.after(this.#dice.between(0, this.world.longest.stop), () => this.#end(key, engine, crash))
  }

  #grant(id: number, key: string, engine: SimulatedEngine | undefined): undefined {
    const client = this.waiting.get(id)
    if (!client) return this.fault(`${id} is granted but does not wait`)
    if (engine?.state !== 'ready') return this.fault(`${id} is granted an engine of ${key} that is not ready`)
    this.waiting.delete(id)
    this.checkPatience(id, client)
    if (client.loadOnly) return
    // A background request that yields but keeps its slots, because no other request wants them, takes nothing.
    const keeps = this.cause.event === 'yield' && this.cause.id === id && client.background
    if (!keeps) this.checkTurn(key, engine, client)
    this.running.set(id, client)
    engine.running.add(id)
    this.checkSlots(key, engine)
    const { longest } = this.world
    if (this.#dice.chance(0.1)) this.after(this.#dice.under(longest.answer), () => this.#yield(id, client))
    this.after(this.#dice.chance(0.1) ? longest.answer : this.#dice.under(longest.answer), () => {
      if (this.running.get(id) !== client) return
      this.#finish(id)
      const rests = id % 8 === 0
      this.#send({ type: 'leave', id, key, rests })
      if (rests) this.after(this.#dice.under(longest.answer), () => this.#continue(id, client))
    })
  }

  /** An answer that rests continues, or was cancelled. */
  #continue(id: number, client: Client): undefined {
    const { key } = client
    this.count('continue')
    if (id % 5 > 0) {
      const before = this.clientsOf(key).length
      this.#ask(++this.#ids, { ...client, arrivedAt: this.now, before }, {}, undefined, true)
    }
    this.#send({ type: 'leave', id, key })
  }

  /** A running request yields. */
  #yield(id: number, client: Client): undefined {
    if (this.running.get(id) !== client) return
    this.#finish(id)
    const before = this.clientsOf(client.key).length
    this.waiting.set(id, { ...client, arrivedAt: this.now, before })
    this.count('yield')
    this.#send({ type: 'yield', id, key: client.key })
  }

  #finish(id: number): undefined {
    this.engines.get(this.running.get(id)!.key)?.running.delete(id)
    this.running.delete(id)
  }

  #refuse(id: number, error: CorralError): undefined {
    const client = this.waiting.get(id)
    if (!client) return this.fault(`${id} is refused but does not wait`)
    this.waiting.delete(id)
    if (!this.world.calm || !/came free/.test(error.message)) return
    this.fault(`${client.key} got no room in ${this.world.limits.roomTimeout} ms`)
  }

  #revoke(id: number, error: CorralError): undefined {
    const client = this.running.get(id)
    if (!client) return this.fault(`${id} is revoked but does not run`)
    if (client.background && error.details?.displaced) {
      this.#finish(id)
      this.count('displaced')
      const again = ++this.#ids
      return this.after(0, () => {
        this.#send({ type: 'leave', id, key: client.key })
        this.#ask(again, { ...client, arrivedAt: this.now }, {})
      })
    }
    const { event, key } = this.cause
    const rightly = (event === 'stop' || event === 'gone') && key === client.key
    if (!rightly) this.fault(`the answer ${id} was lost by ${event}`)
    this.#finish(id)
  }

  #alarm(key: string, at: number | undefined): undefined {
    if (at === undefined) {
      this.#alarms.delete(key)
      return
    }
    if (!Number.isFinite(at)) return this.fault(`an alarm of ${key} for never`)
    const alarm = this.agenda.order
    this.#alarms.set(key, alarm)
    this.after(Math.max(0, at - this.now) + (this.#dice.chance(0.2) ? this.#dice.under(5) : 0), () => {
      if (this.#alarms.get(key) !== alarm) return
      this.#alarms.delete(key)
      this.#send({ type: 'alarm', key })
    })
  }
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
