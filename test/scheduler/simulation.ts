import type { MemoryUse } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../core/models/options.ts'
import { decide } from '../../plugins/scheduler/decide.ts'
import { createState, type Effect, type Event, type Limits, planOf } from '../../plugins/scheduler/scheduler-state.ts'
import { randomNumbers } from '../support/random.ts'

/*
 * A world around the scheduler's machine with a clock of its own: clients, engines, memory, accidents. It checks what
 * must hold whatever happens, and is the same for the same seed.
 */

interface Model {
  key: string
  /** Bytes (of a pool) that it takes by itself, and for each thousand tokens of all slots. */
  base: number
  each: number
  pool: string
  /** By how much its needs are misjudged until one has been seen. */
  error: number
  certain: boolean
  pinned: boolean
  groups: string[]
  maxConcurrent: number | undefined
  keepAlive: number | undefined
  /** Needs that have been learned, by options. */
  learned: Map<string, number>
}

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
  asked: Partial<LoadOptions>
  loadOnly: boolean
  slots: number
  came: number
  /** How many waited before it. */
  before: number
}

export interface Simulation {
  /** What went against the rules; nothing should. */
  faults: string[]
  /** The last things that happened before the first fault. */
  trace: string[]
  /** How often what happened, such as `grant` or `refuse insufficient_memory`. */
  counts: Record<string, number>
  /** The longest that a model waited for room, as a share of how long it may. */
  longestWait: number
}

const crash = new CorralError('engine_crashed', 'crash')
const broken = new CorralError('load_failed', 'broken')
const outOfMemory = new CorralError('insufficient_memory', 'out of memory')
const stopped = new CorralError('model_stopped', 'stopped')
const deleted = new CorralError('model_not_found', 'deleted')

export function simulate(seed: number, requests = 120): Simulation {
  const random = randomNumbers(seed)
  const under = (most: number) => Math.floor(random() * most)
  const between = (least: number, most: number) => least + under(most - least + 1)
  const chance = (share: number) => random() < share
  const pick = <T>(list: readonly T[]): T => list[under(list.length)]!

  // ---- the world -------------------------------------------------------------------------------------------------
  const calm = chance(0.5)
  const longest = {
    answer: between(50, 6000),
    load: between(20, 1500),
    stop: between(5, 400),
    prepare: between(1, 200)
  }
  const pools = chance(0.3) ? ['host', 'GPU0'] : ['host']
  const models: Model[] = ['a#chat', 'b#chat', 'c#chat', 'a#embedding', 'd#chat', 'e#chat']
    .slice(0, between(2, 6))
    .map(key => ({
      key,
      base: between(10, 100),
      each: between(0, 3),
      pool: pick(pools),
      error: chance(0.7) ? 1 : 0.6 + random(),
      certain: chance(0.6),
      pinned: chance(0.07),
      groups: chance(0.2) ? ['g'] : [],
      maxConcurrent: chance(0.2) ? between(1, 3) : undefined,
      keepAlive: chance(0.1) ? 0 : undefined,
      learned: new Map()
    }))
  const modelOf = (key: string) => models.find(model => model.key === key)!
  const limits: Limits = {
    maxLoaded: between(1, 4),
    maxQueue: between(3, 60),
    keepAlive: between(50, 20_000),
    fairWait: between(20, 4000),
    fairCount: between(1, 20),
    roomTimeout: 0
  }
  /** How long a model waits for room at most: everybody else may have a turn before it. */
  const turn = limits.fairWait + longest.answer + 3 * (longest.stop + 2 * longest.load + longest.prepare) + 200
  const bound = (models.length + 1) * turn
  limits.roomTimeout = calm ? 2 * bound : between(500, bound)
  const state = createState(limits)
  let budget: MemoryUse = {}
  for (const pool of pools) if (chance(0.9)) budget[pool] = between(40, 400)
  if (chance(0.2)) {
    // One that needs nearly everything among small ones that could always pass it.
    budget = { host: 200 }
    for (const [index, model] of models.entries()) {
      Object.assign(model, { pool: 'host', base: index === 0 ? 190 : 30, each: 0, error: 1, pinned: false, groups: [] })
    }
    Object.assign(limits, { maxLoaded: 10, keepAlive: 20 })
  }
  /** What there really is: more than the budget by its reserve. */
  const physical = (pool: string) => (budget[pool] ?? Number.POSITIVE_INFINITY) * 1.1

  // ---- bookkeeping -----------------------------------------------------------------------------------------------
  let now = 0
  const agenda: { at: number; order: number; act: () => void }[] = []
  let order = 0
  const after = (delay: number, act: () => void): undefined => {
    const entry = { at: now + delay, order: order++, act }
    let low = 0
    for (let high = agenda.length; low < high; ) {
      const middle = (low + high) >> 1
      const other = agenda[middle]!
      if (other.at > entry.at || (other.at === entry.at && other.order > entry.order)) low = middle + 1
      else high = middle
    }
    agenda.splice(low, 0, entry)
  }
  const faults: string[] = []
  const trace: [at: number, mark: string, what: string | Event | Effect][] = []
  const engines = new Map<string, SimulatedEngine>()
  const preparing = new Map<string, { run: number; options: LoadOptions; aborted: boolean }>()
  /** What the last prepare of each key said. */
  const prepared = new Map<string, { need: MemoryUse; certain: boolean }>()
  const waiting = new Map<number, Client>()
  const running = new Map<number, Client>()
  const alarms = new Map<string, number>()
  const waitsSince = new Map<string, number>()
  const cause = { event: 'none' as Event['type'], key: '' }
  let ids = 0
  const counts: Record<string, number> = {}
  const count = (what: string) => {
    counts[what] = (counts[what] ?? 0) + 1
  }
  let longestWait = 0
  let closed = false

  const note = (mark: string, what: string | Event | Effect) => {
    if (faults.length) return
    trace.push([now, mark, what])
    if (trace.length > 60) trace.shift()
  }
  const fault = (text: string): undefined => {
    note('FAULT', text)
    faults.push(`${now}: ${text}`)
  }

  const takes = (model: Model, options: LoadOptions): number =>
    Math.round(model.base + (model.each * options.num_ctx * options.num_parallel) / 1000)
  const name = (options: LoadOptions) => `${options.num_ctx}/${options.num_parallel}/${options.cache_type_k}`
  const sum = (pool: string, except?: string) =>
    [...engines].reduce((total, [key, { reserved }]) => total + (key === except ? 0 : (reserved[pool] ?? 0)), 0)

  // ---- what the machine sees -------------------------------------------------------------------------------------
  function send(event: Event): undefined {
    cause.event = event.type
    cause.key = 'key' in event ? event.key : ''
    note('>', event)
    for (const effect of decide(state, event, now)) perform(effect)
    checkSurplus()
    if (chance(0.02) && ['loaded', 'gone', 'load-failed', 'prepared', 'alarm', 'leave'].includes(event.type)) {
      note('> again:', event)
      cause.event = event.type
      for (const effect of decide(state, event, now)) perform(effect)
    }
  }

  function perform(effect: Effect): undefined {
    if (effect.type !== 'alarm') {
      note('  ', effect)
      count('error' in effect ? `${effect.type} ${effect.error.code}` : effect.type)
    }
    const engine = 'key' in effect ? engines.get(effect.key) : undefined
    switch (effect.type) {
      case 'prepare':
        return onPrepare(effect.key, effect.run, effect.options)
      case 'abort-prepare': {
        const work = preparing.get(effect.key)
        if (!work) return fault(`nothing of ${effect.key} is prepared that could be called off`)
        work.aborted = true
        return
      }
      case 'load':
        return onLoad(effect.key, effect.run, effect.options)
      case 'abort-load':
        if (engine?.state !== 'loading') return fault(`abort of no load of ${effect.key}`)
        engine.state = 'ending'
        return after(between(0, longest.stop), () => end(effect.key, engine, stopped))
      case 'unload':
        return onUnload(effect.key, engine)
      case 'grant':
        return onGrant(effect.id, effect.key, engine)
      case 'refuse': {
        const client = waiting.get(effect.id)
        if (!client) return fault(`${effect.id} is refused but does not wait`)
        waiting.delete(effect.id)
        if (calm && /came free/.test(effect.error.message))
          fault(`${client.key} got no room in ${limits.roomTimeout} ms`)
        return
      }
      case 'revoke': {
        const client = running.get(effect.id)
        if (!client) return fault(`${effect.id} is revoked but does not run`)
        const rightly = (cause.event === 'stop' || cause.event === 'gone') && cause.key === client.key
        if (!rightly) fault(`the answer ${effect.id} was lost by ${cause.event}`)
        return finish(effect.id)
      }
      case 'alarm':
        return onAlarm(effect.key, effect.at)
      case 'waiting':
        return onWaiting(effect.key, effect.holders)
    }
  }

  function onPrepare(key: string, run: number, options: LoadOptions): undefined {
    if (preparing.has(key)) fault(`${key} is prepared twice`)
    if (![...waiting.values()].some(client => client.key === key)) fault(`${key} is prepared for nobody`)
    const work = { run, options, aborted: false }
    preparing.set(key, work)
    const model = modelOf(key)
    after(between(0, longest.prepare), () => {
      preparing.delete(key)
      if (work.aborted || chance(0.01)) {
        return send({ type: 'prepare-failed', key, run, error: work.aborted ? stopped : broken })
      }
      const known = model.learned.get(name(options))
      const need = { [model.pool]: known ?? Math.round(takes(model, options) * model.error) }
      const certain = known !== undefined || model.certain
      prepared.set(key, { need, certain })
      send({ type: 'prepared', key, run, need, certain, advice: '' })
    })
  }

  function onLoad(key: string, run: number, options: LoadOptions): undefined {
    const model = modelOf(key)
    const plan = prepared.get(key)
    if (!plan || preparing.has(key)) return fault(`${key} is loaded without being prepared`)
    if (engines.has(key)) return fault(`two engines of ${key}`)
    if (closed) fault(`${key} is loaded after the end`)
    if (![...waiting.values()].some(client => client.key === key)) fault(`${key} is loaded for nobody`)
    if (engines.size >= limits.maxLoaded) fault(`${engines.size + 1} engines of ${limits.maxLoaded}`)
    for (const [other, { state }] of engines) {
      const alike = modelOf(other).groups.some(group => model.groups.includes(group))
      if (alike && other[0] !== key[0]) fault(`${key} and ${other} are of one group`)
      if (state === 'loading' && !(plan.certain && engines.get(other)!.certain)) {
        fault(`${key} is loaded beside ${other}, whose need is uncertain`)
      }
    }
    for (const [pool, bytes] of Object.entries(plan.need)) {
      const limit = budget[pool] ?? Number.POSITIVE_INFINITY
      if (bytes > 0 && sum(pool) + bytes > limit) fault(`${key}: ${sum(pool)} + ${bytes} of ${pool} pass ${limit}`)
    }
    const engine: SimulatedEngine = {
      run,
      options,
      reserved: plan.need,
      certain: plan.certain,
      state: 'loading',
      running: new Set()
    }
    engines.set(key, engine)
    const took = between(1, longest.load)
    after(took, () => {
      if (engine.state !== 'loading' || engines.get(key) !== engine) return
      const really = takes(model, options)
      const others = [...engines].reduce(
        (total, [other, { options, state }]) =>
          total +
          (other === key || modelOf(other).pool !== model.pool || state === 'loading'
            ? 0
            : takes(modelOf(other), options)),
        0
      )
      if (really + others > physical(model.pool)) {
        model.learned.set(name(options), Math.max(really, plan.need[model.pool]!))
        return end(key, engine, outOfMemory)
      }
      if (chance(0.04)) return end(key, engine, broken)
      engine.state = 'ready'
      model.learned.set(name(options), really)
      engine.reserved = { [model.pool]: really }
      send({ type: 'loaded', key, run, use: engine.reserved, loadTime: took })
      if (chance(0.05)) after(between(0, longest.answer), () => end(key, engine, crash))
    })
  }

  function end(key: string, engine: SimulatedEngine, error: CorralError): undefined {
    if (engines.get(key) !== engine) return
    const was = engine.state
    engines.delete(key)
    const { run } = engine
    // A load that was called off ends as one; what was ready ends as an engine.
    if (was === 'loading' || error === stopped) send({ type: 'load-failed', key, run, error })
    else send({ type: 'gone', key, run, ...(was === 'ending' ? {} : { error }) })
  }

  function onUnload(key: string, engine: SimulatedEngine | undefined): undefined {
    if (engine?.state !== 'ready') return fault(`unload of no engine of ${key}`)
    if (engine.running.size) fault(`${key} is unloaded under ${engine.running.size} answers`)
    const own = cause.event === 'stop' && cause.key === key
    if (modelOf(key).pinned && !own && !closed) {
      const known = state.engines.get(key)
      if (!(known && planOf(known)?.reload)) fault(`${key} is pinned and was unloaded`)
    }
    const { phase, queue } = { phase: { name: 'absent' }, queue: [], ...state.engines.get(key) }
    if (cause.event !== 'stop' && !closed && phase.name !== 'draining' && queue.length) count('way given')
    else if (cause.key !== key && !closed) count('evicted')
    engine.state = 'ending'
    after(between(0, longest.stop), () => {
      if (engines.get(key) === engine) end(key, engine, crash)
    })
  }

  function onGrant(id: number, key: string, engine: SimulatedEngine | undefined): undefined {
    const client = waiting.get(id)
    if (!client) return fault(`${id} is granted but does not wait`)
    if (engine?.state !== 'ready') return fault(`${id} is granted an engine of ${key} that is not ready`)
    waiting.delete(id)
    const allowed = (client.before + 2) * 2 * bound
    if (calm && now - client.came > allowed) fault(`${id} waited ${now - client.came} ms of ${allowed}`)
    if (client.loadOnly) return
    running.set(id, client)
    engine.running.add(id)
    const slots = engine.options.num_parallel
    const taken = [...engine.running].reduce((sum, each) => sum + Math.min(running.get(each)!.slots, slots), 0)
    if (taken > slots) fault(`answers of ${key} take ${taken} of ${slots} slots`)
    const most = modelOf(key).maxConcurrent ?? Number.POSITIVE_INFINITY
    if (engine.running.size > most) fault(`${engine.running.size} answers of ${key}, of which ${most} may be`)
    after(chance(0.1) ? longest.answer : under(longest.answer), () => {
      if (running.get(id) !== client) return
      finish(id)
      send({ type: 'leave', id, key })
    })
  }

  function finish(id: number): undefined {
    engines.get(running.get(id)!.key)?.running.delete(id)
    running.delete(id)
  }

  function onAlarm(key: string, at: number | undefined): undefined {
    if (at === undefined) {
      alarms.delete(key)
      return
    }
    if (!Number.isFinite(at)) return fault(`an alarm of ${key} for never`)
    const alarm = order
    alarms.set(key, alarm)
    after(Math.max(0, at - now) + (chance(0.2) ? under(5) : 0), () => {
      if (alarms.get(key) !== alarm) return
      alarms.delete(key)
      send({ type: 'alarm', key })
    })
  }

  function onWaiting(key: string, holders: string[]): undefined {
    if (holders.includes(key)) fault(`${key} waits for itself`)
    const since = waitsSince.get(key)
    if (holders.length) waitsSince.set(key, since ?? now)
    else waitsSince.delete(key)
    if (since === undefined || holders.length) return
    longestWait = Math.max(longestWait, (now - since) / bound)
    if (calm && now - since > bound) fault(`${key} waited ${now - since} ms of ${bound} for room`)
  }

  /** Where engines hold more than there may be, none of them may be idle. */
  function checkSurplus(): undefined {
    for (const pool of pools) {
      const staying = [...engines].filter(([, { state }]) => state !== 'ending')
      const held = staying.reduce((total, [, { reserved }]) => total + (reserved[pool] ?? 0), 0)
      if (held <= (budget[pool] ?? held)) continue
      for (const [key, { state, running, reserved }] of staying) {
        const asked = [...waiting.values()].some(client => client.key === key)
        if (state === 'ready' && !running.size && !asked && reserved[pool] && !modelOf(key).pinned) {
          fault(`${key} is idle while ${held} of ${pool} pass ${budget[pool]}`)
        }
      }
    }
  }

  // ---- what happens ----------------------------------------------------------------------------------------------
  function arrive(): undefined {
    const model = chance(0.5) ? models[0]! : pick(models)
    const { key } = model
    const id = ++ids
    const asked: Partial<LoadOptions> = chance(0.15)
      ? { num_ctx: pick([512, 4096, 8192]), ...(chance(0.3) ? { cache_type_k: pick(['f16', 'q8_0']) } : {}) }
      : {}
    const before = [...waiting.values()].filter(client => client.key === key).length
    const client: Client = {
      key,
      asked,
      loadOnly: chance(0.05),
      slots: chance(0.1) ? between(2, 6) : 1,
      came: now,
      before
    }
    waiting.set(id, client)
    send({
      type: 'request',
      id,
      key,
      name: key,
      options: asked,
      loadOnly: client.loadOnly,
      slots: client.slots,
      defaults: DEFAULT_LOAD_OPTIONS,
      keepAlive: chance(0.05) ? 0 : undefined,
      initialKeepAlive: model.keepAlive,
      pinned: model.pinned,
      groups: model.groups,
      maxConcurrent: model.maxConcurrent
    })
    if (chance(0.1)) {
      after(under(2 * longest.answer), () => {
        if (waiting.get(id) === client) waiting.delete(id)
        else if (running.get(id) === client) finish(id)
        else return
        send({ type: 'leave', id, key })
      })
    }
  }

  function meddle(): undefined {
    const dice = random()
    const { key } = pick(models)
    if (dice < 0.4) send({ type: 'stop', key, running: stopped, waiting: stopped, save: true })
    else if (dice < 0.5) send({ type: 'stop', key, running: deleted, waiting: deleted, save: false })
    else if (dice < 0.6) send({ type: 'keep-alive', key, keepAlive: pick([0, 100, Number.POSITIVE_INFINITY]) })
    else if (dice < 0.7) send({ type: 'alarm', key })
    else if (dice < 0.8 && !calm) {
      budget = Object.fromEntries(
        Object.entries(budget).map(([pool, bytes]) => [pool, Math.round(bytes * (0.7 + random() * 0.6))])
      )
      send({ type: 'budget', budget })
    } else {
      const engine = engines.get(key)
      if (engine?.state === 'ready') end(key, engine, crash)
    }
  }

  send({ type: 'budget', budget })
  const pace = between(5, 1500)
  let at = 0
  for (let number = 0; number < requests; number++) {
    at += chance(0.3) ? 0 : under(pace)
    after(at, arrive)
    if (chance(calm ? 0.01 : 0.06)) after(at + under(pace), meddle)
  }
  if (chance(0.1)) {
    after(under(at), () => {
      closed = true
      send({ type: 'close' })
    })
  }
  const horizon = at + (requests + 2) * bound * 2
  for (let turns = 0; agenda.length && turns < 60 * requests && faults.length < 3; turns++) {
    const { at, act } = agenda.pop()!
    now = Math.max(now, at)
    if (now > horizon) break
    act()
  }
  if (!faults.length) {
    if (agenda.length) fault('there is no end of it')
    for (const [id, { key }] of waiting) fault(`${id} waits for ${key} for ever`)
    for (const [id, { key }] of running) fault(`${id} runs on ${key} for ever`)
    for (const [key, { state: phase }] of engines) {
      if (phase !== 'ready') fault(`${key} stays ${phase}`)
      else if (Number.isFinite(state.engines.get(key)?.keepAlive ?? 0)) fault(`${key} was never unloaded`)
    }
  }
  return {
    faults,
    trace: faults.length
      ? trace.map(([at, mark, what]) => `${at} ${mark} ${typeof what === 'string' ? what : describe(what)}`)
      : [],
    counts,
    longestWait
  }
}

function describe(happening: Event | Effect): string {
  const { type } = happening
  const key = 'key' in happening ? ` ${happening.key}` : ''
  const id = 'id' in happening ? ` ${happening.id}` : ''
  const more: Record<string, unknown> = {}
  for (const name of ['run', 'need', 'use', 'certain', 'budget', 'holders', 'asked', 'loadOnly'] as const) {
    const value = (happening as Record<string, unknown>)[name]
    if (value !== undefined && value !== false) more[name] = value
  }
  if ('options' in happening) more.options = `${happening.options.num_ctx}/${happening.options.cache_type_k}`
  if ('error' in happening && happening.error) more.error = happening.error.code
  return `${type}${key}${id} ${JSON.stringify(more)}`
}

/** Runs the seeds from `first` on and tells the first one that breaks a rule, with what led to it. */
export function simulateMany(
  first: number,
  count: number
): { report: string | undefined; counts: Simulation['counts']; longestWait: number } {
  const counts: Simulation['counts'] = {}
  let longestWait = 0
  for (let seed = first; seed < first + count; seed++) {
    const run = simulate(seed)
    for (const [what, times] of Object.entries(run.counts)) counts[what] = (counts[what] ?? 0) + times
    longestWait = Math.max(longestWait, run.longestWait)
    if (run.faults.length) {
      return { report: `seed ${seed}: ${run.faults.join('; ')}\n${run.trace.join('\n')}`, counts, longestWait }
    }
  }
  return { report: undefined, counts, longestWait }
}
