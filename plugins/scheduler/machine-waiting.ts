import type { LoadOptions } from '../../core/models/options.ts'
import { firstLoad, satisfies, union } from './load-options.ts'
import { dropPlan, load, newPlan, prepare, refuse, setAlarm, unload, waitFor } from './machine-actions.ts'
import { noRoomEver, noRoomInTime } from './machine-refusals.ts'
import {
  cheapestLoss,
  fits,
  lossOfAny,
  lossOfIdle,
  overfull,
  plannedTenant,
  type Tenant,
  tenantOf,
  without
} from './machine-room.ts'
import { serve, undoReload } from './machine-serve.ts'
import type { Effect, EngineState, Plan, SchedulerState, Waiter } from './machine-state.ts'

/** Loads side by side may fill the budget to here: what an engine takes is known for sure only once it is loaded. */
const SHARE_OF_PARALLEL_LOADS = 0.9

/** What those who wait longer will change: whoever comes after them plans with that. */
interface Ahead {
  leaving: Set<EngineState>
  coming: Tenant[]
  /** Those who have to wait until some of the coming ones have had their turn. */
  nextTurn: Tenant[]
  /** Whether one of them waits for the loads of others to end. */
  waitsForLoads: boolean
}

type Waiting = EngineState & { plan: Plan }

function waitsForRoom(engine: EngineState): engine is Waiting {
  return engine.plan?.need !== undefined && engine.queue.length > 0 && engine.phase !== 'loading'
}

/**
 * Gives room to the models that wait for it, in the order in which they began to wait: unloads idle engines where that
 * is enough, else has busy ones give way in time. Who came later may pass only where nobody ahead waits longer for it.
 */
export function seatWaiting(state: SchedulerState, now: number, effects: Effect[]): void {
  const engines = [...state.engines.values()]
  const waiting = engines.filter(waitsForRoom).sort((a, b) => a.plan.since - b.plan.since || a.plan.run! - b.plan.run!)
  const gaveWay = engines.filter(engine => engine.giveWay)
  for (const engine of gaveWay) engine.giveWay = undefined
  const ahead: Ahead = { leaving: new Set(), coming: [], nextTurn: [], waitsForLoads: false }
  for (const engine of waiting) seat(state, engine, ahead, now, effects)
  // Whoever waited for their room may have left or found another.
  for (const engine of gaveWay) {
    if (engine.phase === 'ready') serve(state, engine, now, effects)
  }
}

function seat(state: SchedulerState, engine: Waiting, ahead: Ahead, now: number, effects: Effect[]): void {
  const { plan, phase } = engine
  const newcomer = plannedTenant(engine)
  if (phase === 'stopping') {
    ahead.coming.push(newcomer)
    return
  }
  const others = [...state.engines.values()].filter(other => other !== engine && other.phase !== 'absent')
  const staying = others.filter(other => other.phase !== 'stopping')
  const later = staying.filter(other => !ahead.leaving.has(other))
  if (refuseForEver(state, engine, staying, now, effects)) return

  const enoughLater = (gone: readonly EngineState[]) =>
    fits(state, [...without(later, gone), ...ahead.coming], newcomer) &&
    ahead.nextTurn.every(other => fits(state, [other], newcomer))
  const enough = (gone: readonly EngineState[]) => fits(state, without(staying, gone), newcomer) && enoughLater(gone)
  const free = later.filter(other => isFree(state, other, plan, now))
  const victims = cheapestLoss(free, other => lossOfIdle(other, now), enough)

  let holders: string[] = []
  if (victims && phase === 'draining') {
    if (!engine.running.size) for (const leaver of [...victims, engine]) unload(leaver, true, effects)
    for (const leaver of [...victims, engine]) ahead.leaving.add(leaver)
  } else if (victims) {
    if (plan.alone) victims.push(...free.filter(other => !victims.includes(other) && !other.queue.length))
    for (const victim of victims) ahead.leaving.add(victim)
    const hinderers = take(state, engine, newcomer, others, victims, ahead, effects)
    if (!hinderers.length) return
    if (hinderers[0]!.phase === 'loading' && refuseLate(state, engine, staying, now, effects)) return
    holders = hinderers.map(other => other.key)
    wakeAt(engine, deadlines(state, engine), now, effects)
  } else {
    if (refuseLate(state, engine, staying, now, effects)) return
    const claimed = claim(state, plan, later, enoughLater, now)
    holders = claimed.length
      ? claimed.map(other => other.key)
      : [...ahead.coming, ...ahead.nextTurn].map(tenant => tenant.key)
    for (const leaver of claimed) ahead.leaving.add(leaver)
    if (!claimed.length) ahead.nextTurn.push(newcomer)
    else if (phase === 'draining') ahead.leaving.add(engine)
    wakeAt(engine, [...deadlines(state, engine), ...claimed.flatMap(other => other.giveWay?.at ?? [])], now, effects)
  }
  if (!ahead.nextTurn.includes(newcomer)) ahead.coming.push(newcomer)
  waitFor(engine, holders, effects)
  if (phase === 'absent') growPlan(state, engine, effects)
}

function wakeAt(engine: EngineState, times: readonly number[], now: number, effects: Effect[]): void {
  setAlarm(engine, Math.min(...times.filter(at => at > now)), effects)
}

/** Loads, if that can be now, and returns nothing; else makes what room can be made, and returns whom it waits for. */
function take(
  state: SchedulerState,
  engine: Waiting,
  newcomer: Tenant,
  others: readonly EngineState[],
  victims: readonly EngineState[],
  ahead: Ahead,
  effects: Effect[]
): readonly EngineState[] {
  const { plan } = engine
  const loading = others.filter(other => other.phase === 'loading')
  const sure = !ahead.waitsForLoads && plan.certain && !plan.alone && loading.every(other => other.certain)
  if (loading.length && !(sure && fits(state, without(others, victims), newcomer, SHARE_OF_PARALLEL_LOADS))) {
    ahead.waitsForLoads = true
    return loading
  }
  for (const victim of victims) unload(victim, true, effects)
  const stopping = others.filter(other => other.phase === 'stopping')
  if (stopping.length && (plan.alone || !fits(state, others.map(tenantOf), newcomer))) return stopping
  load(state, engine, plan, effects)
  return []
}

/** Whether nothing is lost but a load when this engine goes now. */
function isFree(state: SchedulerState, other: EngineState, plan: Plan, now: number): boolean {
  if (other.pinned || other.running.size) return false
  const mustGo = plan.claims.has(other) && (other.phase === 'draining' || mustGiveWay(state, other, plan, now))
  return mustGo || (other.phase === 'ready' && !other.queue.length)
}

function bounds(state: SchedulerState, other: EngineState, plan: Plan): { at: number; grants: number } {
  return {
    at: Math.max(plan.since, other.turn) + state.limits.fairWait,
    grants: (plan.claims.get(other) ?? other.grants) + state.limits.fairCount
  }
}

function mustGiveWay(state: SchedulerState, other: EngineState, plan: Plan, now: number): boolean {
  const { at, grants } = bounds(state, other, plan)
  return other.phase === 'ready' && (now >= at || other.grants >= grants)
}

/** Chooses the busy engines whose room this model is to have, and keeps to them as long as they are enough. */
function claim(
  state: SchedulerState,
  plan: Plan,
  later: readonly EngineState[],
  enough: (gone: readonly EngineState[]) => boolean,
  now: number
): EngineState[] {
  const claimed = later.filter(other => plan.claims.has(other) && !other.pinned)
  if (!claimed.length || !enough(claimed)) {
    const movable = later.filter(other => !other.pinned)
    const chosen = cheapestLoss(movable, other => lossOfAny(other, now), enough) ?? []
    plan.claims = new Map(chosen.map(other => [other, plan.claims.get(other) ?? other.grants]))
  }
  const holders = later.filter(other => plan.claims.has(other))
  for (const other of holders) {
    if (other.phase === 'ready') other.giveWay = bounds(state, other, plan)
  }
  return holders
}

/** Refuses those for whom there will never be room; true when the plan is no more. */
function refuseForEver(
  state: SchedulerState,
  engine: Waiting,
  staying: readonly EngineState[],
  now: number,
  effects: Effect[]
): boolean {
  const { plan } = engine
  const pinned = staying.filter(other => other.pinned)
  if (fits(state, pinned.map(tenantOf), plannedTenant(engine))) return false
  const error = noRoomEver(state, engine, plan, pinned)
  if (engine.reload) {
    undoReload(state, engine, error, now, effects)
    return true
  }
  refuse(engine, tooDemanding(engine), error, effects)
  dropPlan(engine, effects)
  if (engine.queue.length) {
    engine.plan = newPlan(firstLoad(engine.defaults!, asksOf(engine.queue)))
    prepare(state, engine, effects)
  }
  return true
}

/** Refuses those for whom there was no room for too long; true when the plan is no more. */
function refuseLate(
  state: SchedulerState,
  engine: Waiting,
  staying: readonly EngineState[],
  now: number,
  effects: Effect[]
): boolean {
  const { plan } = engine
  const late = engine.queue.filter(waiter => hasDeadline(engine, waiter) && now >= deadlineOf(state, plan, waiter))
  if (!late.length) return false
  const error = noRoomInTime(state, engine, plan, staying)
  if (engine.reload) {
    undoReload(state, engine, error, now, effects)
    return true
  }
  refuse(
    engine,
    late.map(waiter => waiter.id),
    error,
    effects
  )
  if (engine.queue.length) return false
  dropPlan(engine, effects)
  return true
}

/** While reloading it is the asker who waits for room; the others wait for the engine. */
function hasDeadline({ reload }: EngineState, { id }: Waiter): boolean {
  return !reload || reload.asker === id
}

function deadlineOf(state: SchedulerState, plan: Plan, { at }: Waiter): number {
  return Math.max(at, plan.since) + state.limits.roomTimeout
}

function deadlines(state: SchedulerState, engine: Waiting): number[] {
  return engine.queue
    .filter(waiter => hasDeadline(engine, waiter))
    .map(waiter => deadlineOf(state, engine.plan, waiter))
}

function asksOf(queue: readonly Waiter[]) {
  return queue.map(waiter => waiter.asked)
}

/** Of those who wait together for options that are too much: the ones whose own wishes are. */
function tooDemanding({ queue, defaults, plan }: Waiting): number[] {
  const idsOf = (waiters: readonly Waiter[]) => waiters.map(waiter => waiter.id)
  const alone = queue.filter(waiter => satisfies(firstLoad(defaults!, [waiter.asked]), plan.options))
  if (alone.length) return idsOf(alone)
  const anew = firstLoad(defaults!, asksOf(queue))
  // What they want now is less than what was planned.
  if (!satisfies(anew, plan.options)) return []
  const raiser = queue.findLast(
    (waiter, at) => !satisfies(firstLoad(defaults!, asksOf(queue.slice(0, at))), waiter.asked)
  )
  return idsOf(raiser ? [raiser] : queue)
}

/** While there is no room yet, later requests may ask for more. */
function growPlan(state: SchedulerState, engine: Waiting, effects: Effect[]): void {
  if (engine.reload) return
  const { plan } = engine
  const wanted = asksOf(engine.queue).reduce<LoadOptions>(
    (options, asked) => (satisfies(options, asked) ? options : union(options, asked)),
    plan.options
  )
  if (satisfies(plan.options, wanted)) return
  engine.plan = { ...newPlan(wanted), since: plan.since, alone: plan.alone }
  prepare(state, engine, effects)
}

/** When engines turn out to hold more than there may be, idle ones go. */
export function unloadSurplus(state: SchedulerState, now: number, effects: Effect[]): void {
  const staying = [...state.engines.values()].filter(({ phase }) => phase !== 'absent' && phase !== 'stopping')
  const pools = overfull(state, staying.map(tenantOf))
  if (!pools.length) return
  const idle = staying.filter(
    engine =>
      engine.phase === 'ready' &&
      !engine.pinned &&
      !engine.running.size &&
      !engine.queue.length &&
      pools.some(pool => engine.reserved[pool])
  )
  const within = (gone: readonly EngineState[]) => !overfull(state, without(staying, gone)).length
  for (const engine of cheapestLoss(idle, engine => lossOfIdle(engine, now), within) ?? idle) {
    unload(engine, true, effects)
  }
}
