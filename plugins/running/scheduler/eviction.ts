import type { MemoryUse } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import {
  type EngineIn,
  type EngineState,
  isIn,
  onlyIdleWait,
  type Plan,
  type PreparedPlan,
  reservedBy,
  runningOn,
  type SchedulerState
} from './scheduler-state.ts'
import { isGreedy, isOfOthers } from './turns.ts'

/*
 * Where a model that waits finds room: what it fits beside, what is evicted for it, and the errors where there is none.
 * Nothing is changed here.
 */

/** What takes room: an engine that is here, or one that is to come. */
export interface Tenant {
  key: string
  groups: readonly string[]
  use: MemoryUse
  /** It takes nothing of this machine: it needs no room and counts for none. */
  elsewhere: boolean
}

/** What the models that have waited longer will change. Those behind them plan with that. */
export interface Ahead {
  leaving: Set<EngineState>
  coming: Tenant[]
  /** Those that have to wait until some of the coming ones have had their turn. */
  nextTurn: Tenant[]
  /** Whether one of them waits for the loads of others to end. */
  waitsForLoads: boolean
}

export type Room =
  /** It would not fit even if only pinned models stayed. */
  | { when: 'never'; pinned: EngineState[] }
  /** Once these idle engines are evicted, if any. */
  | { when: 'now'; victims: EngineIn<'ready' | 'draining'>[] }
  /**
   * When busy engines have given way: all that are to (`claims`, with their grants so far), and those of them that are
   * here (`claimed`). Where there are none it waits for the turns of those ahead.
   */
  | { when: 'later'; claims: ReadonlyMap<EngineState, number>; claimed: EngineState[] }

/**
 * Finds room for a model that waits:
 *
 * 1. Pinned models never go. Where it does not fit beside them, there is no room ever.
 * 2. Idle engines are evicted, and busy ones that it has claimed and whose fair turn is over: as few as suffice, those
 *    least recently used, cheapest to load again and not used by other clients; none if they would not suffice, beside
 *    those that are ahead too. One that other clients use counts as busy for a client that had many of those evicted.
 * 3. Else it claims busy engines, as few as suffice once their turns are over, and keeps to them as long as they do.
 *
 * Answers that take what is idle keep no engine busy. A model that only those wait for gets the room of such engines as no
 * client has used and nobody uses now; it claims none.
 */
export function findRoom(
  state: SchedulerState,
  engine: EngineState,
  plan: PreparedPlan,
  ahead: Ahead,
  now: number
): Room {
  const newcomer = plannedTenant(engine, plan)
  const staying = stayingBeside(state, engine)
  const pinned = staying.filter(other => other.pinned)
  if (!fits(state, pinned.map(tenantOf), newcomer)) return { when: 'never', pinned }

  const later = staying.filter(other => !ahead.leaving.has(other))
  const enoughLater = (gone: readonly EngineState[]) =>
    fits(state, [...without(later, gone), ...ahead.coming], newcomer) &&
    ahead.nextTurn.every(other => fits(state, [other], newcomer))
  const enough = (gone: readonly EngineState[]) => fits(state, without(staying, gone), newcomer) && enoughLater(gone)
  if (onlyIdleWait(engine)) {
    const unused = later.filter(isIdle).filter(other => isUnused(other))
    const victims = cheapestLoss(unused, other => lossOfIdle(other, now), enough)
    return victims ? { when: 'now', victims } : { when: 'later', claims: new Map(), claimed: [] }
  }

  const greedy = isGreedy(state, engine, now)
  const evictable = later
    .filter(other => isEvictable(state, other, plan, now))
    .filter(
      other => !greedy || !isIdle(other) || !isOfOthers(other, engine, now) || isTurnOver(state, other, plan, now)
    )
  const loss = (other: EngineIn<'ready' | 'draining'>) =>
    lossOfIdle(other, now) *
    (isOfOthers(other, engine, now) ? OTHERS_LOSS : other.clients.size === 0 ? NOBODYS_LOSS : 1)
  const victims = cheapestLoss(evictable, loss, enough)
  if (victims && plan.alone) victims.push(...evictable.filter(other => !victims.includes(other) && !other.queue.length))
  if (victims) return { when: 'now', victims }

  const movable = later.filter(other => !other.pinned)
  const kept = movable.filter(other => plan.claims.has(other))
  let { claims } = plan
  if (!kept.length || !enoughLater(kept)) {
    const chosen = cheapestLoss(movable, other => lossOfAny(other, now), enoughLater) ?? []
    claims = new Map(chosen.map(other => [other, plan.claims.get(other) ?? other.grants]))
  }
  return { when: 'later', claims, claimed: later.filter(other => claims.has(other)) }
}

/** Loads side by side may fill the budget to here: what an engine takes is known for sure only once it is loaded. */
const SHARE_OF_PARALLEL_LOADS = 0.9

/** The loads that have to end before this one may begin: all of them, unless it is sure that there is room for all. */
export function loadsToAwait(
  state: SchedulerState,
  engine: EngineState,
  plan: PreparedPlan,
  victims: readonly EngineState[],
  ahead: Ahead
): EngineState[] {
  const others = enginesBeside(state, engine)
  const loading = others.filter(other => isIn(other, 'loading'))
  const certain = [plan, ...loading.map(other => other.phase.plan)].every(each => each.estimate.certain && !each.alone)
  const newcomer = plannedTenant(engine, plan)
  const sure =
    !ahead.waitsForLoads && certain && fits(state, without(others, victims), newcomer, SHARE_OF_PARALLEL_LOADS)
  return sure ? [] : loading
}

/** The stopping engines that have to be gone before this one may load. */
export function stopsToAwait(state: SchedulerState, engine: EngineState, plan: PreparedPlan): EngineState[] {
  const others = enginesBeside(state, engine)
  const stopping = others.filter(other => isIn(other, 'stopping'))
  return plan.alone || !fits(state, others.map(tenantOf), plannedTenant(engine, plan)) ? stopping : []
}

/** The idle engines to evict where engines turn out to hold more than there may be. */
export function surplus(state: SchedulerState, now: number): EngineIn<'ready'>[] {
  const staying = [...state.engines.values()].filter(other => isIn(other, 'loading', 'ready', 'draining'))
  const pools = overfull(state, staying.map(tenantOf))
  if (!pools.length) return []
  const idle = staying.filter(isIdle).filter(other => !other.pinned && pools.some(pool => reservedBy(other)[pool]))
  const within = (gone: readonly EngineState[]) => !overfull(state, without(staying, gone)).length
  return cheapestLoss(idle, other => lossOfIdle(other, now), within) ?? idle
}

/** When a busy engine grants no more, since this plan claims its room. */
export function endOfTurn(state: SchedulerState, other: EngineIn<'ready'>, plan: Plan): { at: number; grants: number } {
  return {
    at: Math.max(plan.since, other.phase.readySince) + state.limits.fairWait,
    grants: (plan.claims.get(other) ?? other.grants) + state.limits.fairCount
  }
}

/** An engine as its plan will make it. */
export function plannedTenant({ key, groups, elsewhere }: EngineState, plan: PreparedPlan): Tenant {
  return { key, groups, elsewhere, use: plan.estimate.use }
}

/** An engine that is here, with what it holds. */
function tenantOf(engine: EngineState): Tenant {
  return { key: engine.key, groups: engine.groups, elsewhere: engine.elsewhere, use: reservedBy(engine) }
}

/** All others that take room. */
function enginesBeside(state: SchedulerState, engine: EngineState): EngineState[] {
  return [...state.engines.values()].filter(other => other !== engine && !isIn(other, 'absent', 'planned'))
}

/** All others that take room and are not on their way out. */
function stayingBeside(state: SchedulerState, engine: EngineState): EngineState[] {
  return enginesBeside(state, engine).filter(other => !isIn(other, 'stopping'))
}

function without(engines: readonly EngineState[], gone: readonly EngineState[]): Tenant[] {
  return engines.filter(engine => !gone.includes(engine)).map(tenantOf)
}

/** Whether two may not be in memory together. A model in two modes is no two models. */
function exclude(a: Tenant, b: Tenant): boolean {
  return a.key.split('#', 1)[0] !== b.key.split('#', 1)[0] && a.groups.some(group => b.groups.includes(group))
}

function sum(tenants: readonly Tenant[], pool: string): number {
  return tenants.reduce((bytes, { use }) => bytes + (use[pool] ?? 0), 0)
}

/** Whether `newcomer` may be in memory beside `present`, within `share` of the budget. */
function fits(state: SchedulerState, present: readonly Tenant[], newcomer: Tenant, share = 1): boolean {
  if (present.some(tenant => exclude(tenant, newcomer))) return false
  if (newcomer.elsewhere) return true
  if (present.filter(({ elsewhere }) => !elsewhere).length >= state.limits.maxLoaded) return false
  return Object.entries(newcomer.use).every(([pool, bytes]) => {
    const budget = state.budget[pool]
    return budget === undefined || bytes === 0 || sum(present, pool) + bytes <= budget * share
  })
}

/** Pools of which these hold more than there may be. */
function overfull(state: SchedulerState, present: readonly Tenant[]): string[] {
  return Object.entries(state.budget)
    .filter(([pool, budget]) => sum(present, pool) > budget)
    .map(([pool]) => pool)
}

function isIdle(engine: EngineState): engine is EngineIn<'ready'> {
  return isIn(engine, 'ready') && !runningOn(engine) && onlyIdleWait(engine)
}

function isUnused({ phase, queue, clients, pinned }: EngineIn<'ready'>): boolean {
  return !pinned && !phase.running.size && !queue.length && !clients.size
}

/** Whether nothing is lost but a load when this engine goes now. */
function isEvictable(
  state: SchedulerState,
  other: EngineState,
  plan: Plan,
  now: number
): other is EngineIn<'ready' | 'draining'> {
  if (other.pinned || runningOn(other)) return false
  if (isIdle(other)) return true
  if (isIn(other, 'draining')) return plan.claims.has(other) || onlyIdleWait(other)
  return isIn(other, 'ready') && isTurnOver(state, other, plan, now)
}

function isTurnOver(state: SchedulerState, other: EngineIn<'ready'>, plan: Plan, now: number): boolean {
  if (!plan.claims.has(other)) return false
  const { at, grants } = endOfTurn(state, other, plan)
  return now >= at || other.grants >= grants
}

/** By how much dearer the loss of an engine is that others have used lately: a client evicts its own ones first. */
const OTHERS_LOSS = 8
/** … and that of one that no client has used: nobody waits for it to be loaded again. */
const NOBODYS_LOSS = 1 / 8

/** Quicker loads count as this long (milliseconds), so that the number of engines evicted matters as well. */
const MIN_LOAD_TIME = 200

/** What it costs to lose an idle engine: its load, the dearer the more likely it is soon needed again. */
function lossOfIdle({ phase }: EngineIn<'ready' | 'draining'>, now: number): number {
  return Math.max(phase.loadTime, MIN_LOAD_TIME) / Math.max(now - phase.lastUsed, 1)
}

/** Idle engines first, then as few busy ones as possible, those whose turn has lasted longest. */
function lossOfAny(engine: EngineState, now: number): number {
  if (isIdle(engine)) return lossOfIdle(engine, now)
  const turn = isIn(engine, 'ready', 'draining') ? now - engine.phase.readySince : 0
  return 1e6 + 1e6 / Math.max(turn, 1)
}

/**
 * The engines whose loss costs least among those whose loss is enough; none of them could be spared. Undefined when
 * even the loss of all is not enough. `enough` must stay true when more engines go.
 */
function cheapestLoss<Engine extends EngineState>(
  candidates: readonly Engine[],
  loss: (engine: Engine) => number,
  enough: (gone: readonly Engine[]) => boolean
): Engine[] | undefined {
  if (enough([])) return []
  if (!candidates.length || !enough(candidates)) return undefined
  const ordered = [...candidates].sort((a, b) => loss(a) - loss(b))
  const single = ordered.find(engine => enough([engine]))
  let several: Engine[] = []
  for (const engine of ordered) {
    several.push(engine)
    if (enough(several)) break
  }
  for (const engine of [...several].reverse()) {
    const rest = several.filter(other => other !== engine)
    if (enough(rest)) several = rest
  }
  const cost = several.reduce((total, engine) => total + loss(engine), 0)
  return single && loss(single) <= cost ? [single] : several
}

/** The error for a model that can never be loaded while `pinned` stay. */
export function noRoomEver(
  state: SchedulerState,
  engine: EngineState,
  plan: PreparedPlan,
  pinned: readonly EngineState[]
): CorralError {
  const { maxLoaded } = state.limits
  const newcomer = plannedTenant(engine, plan)
  const excluding = pinned.filter(other => !fits({ ...state, budget: {} }, [tenantOf(other)], newcomer))
  let message: string
  if (pinned.length >= maxLoaded) {
    message = `No room for another model: ${pinned.length} pinned models are loaded and at most ${maxLoaded} may be. Unpin one or raise scheduler.max_loaded_models in config.yaml.`
  } else if (excluding.length && maxLoaded > 1) {
    const names = [...new Set(excluding.map(other => `"${other.name}"`))].join(', ')
    message = `Model "${engine.name}" may not be in memory together with ${names}, which is pinned. Unpin it or change their groups in config.yaml.`
  } else {
    const tooLarge = Object.entries(newcomer.use).some(([pool, bytes]) => bytes > (state.budget[pool] ?? bytes))
    const because = tooLarge
      ? ''
      : ` Pinned models hold part of it: ${pinned.map(holding).join(', ')}; unpin one to make room.`
    const numbers =
      plan.estimate.advice ||
      `It needs ${amounts(newcomer.use)}, and all models together may take ${amounts(state.budget)}. A smaller context, a q8_0 cache or fewer slots need less.`
    message = `There is no room in memory for model "${engine.name}". ${numbers}${because}`
  }
  return new CorralError('insufficient_memory', message, { details: detailsOf(state, plan, pinned) })
}

/** The error for requests that waited for room longer than `room_timeout`. */
export function noRoomInTime(state: SchedulerState, engine: EngineState, plan: PreparedPlan): CorralError {
  const holders = stayingBeside(state, engine)
  const held = holders.length ? ` It is held by ${holders.map(holding).join(', ')}.` : ''
  const needs = overfull(state, [plannedTenant(engine, plan), ...holders.map(tenantOf)]).length
    ? `It needs ${amounts(plan.estimate.use)} of ${amounts(state.budget)} that all models together may take.`
    : `At most ${state.limits.maxLoaded} models may be loaded, and those of one group never together.`
  return new CorralError(
    'insufficient_memory',
    `No room for model "${engine.name}" came free in ${formatDuration(state.limits.roomTimeout)}. ${needs}${held} Try again later, or stop one of them.`,
    { details: detailsOf(state, plan, holders) }
  )
}

function detailsOf(state: SchedulerState, plan: PreparedPlan, holders: readonly EngineState[]) {
  return {
    need: plan.estimate.use,
    budget: state.budget,
    held: holders.map(other => ({
      name: other.name,
      use: reservedBy(other),
      running: runningOn(other),
      pinned: other.pinned
    }))
  }
}

function holding(engine: EngineState): string {
  const parts = [amounts(reservedBy(engine))]
  if (engine.pinned) parts.push('pinned')
  if (isIn(engine, 'loading')) parts.push('loading')
  if (runningOn(engine)) parts.push(`${runningOn(engine)} running`)
  if (engine.queue.length) parts.push(`${engine.queue.length} waiting`)
  return `"${engine.name}" (${parts.join(', ')})`
}

/** `1.2 GB` of the only pool, or `1.2 GB (host), 6.1 GB (CUDA0)`. */
function amounts(use: MemoryUse): string {
  const pools = Object.entries(use).filter(([, bytes]) => bytes > 0)
  const [first] = pools
  if (pools.length === 1 && first?.[0] === 'host') return formatBytes(first[1])
  return pools.map(([pool, bytes]) => `${formatBytes(bytes)} (${pool})`).join(', ') || 'nothing known'
}
