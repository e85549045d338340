import type { MemoryUse } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import { isGreedy, isUsedByOthers } from './fair-share.ts'
import {
  type EngineInPhase,
  type EngineState,
  isIn,
  onlyBackgroundWaits,
  type Plan,
  type PreparedPlan,
  reservedBy,
  runningOn,
  type SchedulerState
} from './scheduler-state.ts'

/* Finds room for a waiting model: which models stay, which are evicted, and the errors if there is none. Pure. */

/** Changes that the models ahead in the queue will make. The models behind them plan with these. */
export interface Ahead {
  leaving: Set<EngineState>
  coming: EngineState[]
  /** Models that have to wait until some of the coming models have had their turn. */
  nextTurn: EngineState[]
  /** Whether one of them waits for other loads to end. */
  waitsForLoads: boolean
}

export type Room =
  /** The model would not fit even if only pinned models stayed. */
  | { when: 'never'; pinned: EngineState[] }
  /** There is room after these idle engines are evicted. The list may be empty. */
  | { when: 'now'; victims: EngineInPhase<'ready' | 'draining'>[] }
  /**
   * There is room after busy engines have given way: `claims` are all of these with their grants so far, `claimed`
   * those present. If there are none, it waits behind the models ahead.
   */
  | { when: 'later'; claims: ReadonlyMap<EngineState, number>; claimed: EngineState[] }

/**
 * Finds room for a waiting model:
 *
 * 1. Pinned models always stay. If it does not fit beside them, there is never room.
 * 2. Idle engines are evicted, and claimed engines whose turn is over. As few as possible go: the least recently used,
 *    the cheapest to load again, and those that other clients do not use. Nothing is evicted if that would not free
 *    enough. If the client has already evicted many engines of others, engines that others use count as busy.
 * 3. Otherwise it claims as few busy engines as possible, and keeps its claims while they suffice.
 *
 * Background requests do not make an engine busy. A model that only they wait for may replace engines that no client
 * has used and that are idle, and claims nothing.
 */
export function findRoom(
  state: SchedulerState,
  engine: EngineState,
  plan: PreparedPlan,
  ahead: Ahead,
  now: number
): Room {
  const newcomer = planned(engine, plan)
  const staying = stayingBeside(state, engine)
  const pinned = staying.filter(other => other.pinned)
  if (!fits(state, pinned, newcomer)) return { when: 'never', pinned }

  const ifLater = staying.filter(other => !ahead.leaving.has(other))
  const enoughLater = (gone: readonly EngineState[]) =>
    fits(state, [...without(ifLater, gone), ...ahead.coming], newcomer) &&
    ahead.nextTurn.every(other => fits(state, [other], newcomer))
  const enough = (gone: readonly EngineState[]) => fits(state, without(staying, gone), newcomer) && enoughLater(gone)
  if (onlyBackgroundWaits(engine)) {
    const unused = ifLater.filter(isIdle).filter(other => isUnused(other))
    const victims = cheapestLoss(unused, other => idleLoss(other, now), enough)
    return victims ? { when: 'now', victims } : { when: 'later', claims: new Map(), claimed: [] }
  }

  const greedy = isGreedy(state, engine, now)
  const evictable = ifLater
    .filter(other => isEvictable(state, other, plan, now))
    .filter(
      other => !greedy || !isIdle(other) || !isUsedByOthers(other, engine, now) || isTurnOver(state, other, plan, now)
    )
  const loss = (other: EngineInPhase<'ready' | 'draining'>) =>
    idleLoss(other, now) *
    (isUsedByOthers(other, engine, now) ? OTHERS_LOSS_FACTOR : other.clients.size === 0 ? UNUSED_LOSS_FACTOR : 1)
  const victims = cheapestLoss(evictable, loss, enough)
  if (victims && plan.alone) victims.push(...evictable.filter(other => !victims.includes(other) && !other.queue.length))
  if (victims) return { when: 'now', victims }

  const movable = ifLater.filter(other => !other.pinned)
  const kept = movable.filter(other => plan.claims.has(other))
  let { claims } = plan
  if (!kept.length || !enoughLater(kept)) {
    const chosen = cheapestLoss(movable, other => evictionLoss(other, now), enoughLater) ?? []
    claims = new Map(chosen.map(other => [other, plan.claims.get(other) ?? other.grants]))
  }
  return { when: 'later', claims, claimed: ifLater.filter(other => claims.has(other)) }
}

/** Share of the budget that parallel loads may fill. An engine's exact need is known only after its load. */
const PARALLEL_LOAD_SHARE = 0.9

/** Returns the loads that must end before this load may begin: all of them, unless all loads surely fit together. */
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
  const newcomer = planned(engine, plan)
  const sure = !ahead.waitsForLoads && certain && fits(state, without(others, victims), newcomer, PARALLEL_LOAD_SHARE)
  return sure ? [] : loading
}

/** Returns the stopping engines that must be gone before this one may load. */
export function stopsToAwait(state: SchedulerState, engine: EngineState, plan: PreparedPlan): EngineState[] {
  const others = enginesBeside(state, engine)
  const stopping = others.filter(other => isIn(other, 'stopping'))
  return plan.alone || !fits(state, others, planned(engine, plan)) ? stopping : []
}

/** Returns the idle engines to evict when engines turn out to use more than the budget. */
export function surplus(state: SchedulerState, now: number): EngineInPhase<'ready'>[] {
  const staying = [...state.engines.values()].filter(other => isIn(other, 'loading', 'ready', 'draining'))
  const pools = overfull(state, staying)
  if (!pools.length) return []
  const background = staying
    .filter(isIdle)
    .filter(other => !other.pinned && pools.some(pool => reservedBy(other)[pool]))
  const within = (gone: readonly EngineState[]) => !overfull(state, without(staying, gone)).length
  return cheapestLoss(background, other => idleLoss(other, now), within) ?? background
}

/** Returns when a busy engine must stop granting, because this plan claims its room. */
export function getTurnEnd(
  state: SchedulerState,
  other: EngineInPhase<'ready'>,
  plan: Plan
): { at: number; grants: number } {
  return {
    at: Math.max(plan.since, other.phase.readySince) + state.limits.fairWait,
    grants: (plan.claims.get(other) ?? other.grants) + state.limits.fairCount
  }
}

/** The engine that a plan will start, as if it were loading. */
export function planned(engine: EngineState, plan: PreparedPlan): EngineState {
  return { ...engine, phase: { name: 'loading', run: 0, plan } }
}

function enginesBeside(state: SchedulerState, engine: EngineState): EngineState[] {
  return [...state.engines.values()].filter(other => other !== engine && !isIn(other, 'absent', 'planned'))
}

function stayingBeside(state: SchedulerState, engine: EngineState): EngineState[] {
  return enginesBeside(state, engine).filter(other => !isIn(other, 'stopping'))
}

function without(engines: readonly EngineState[], gone: readonly EngineState[]): EngineState[] {
  return engines.filter(engine => !gone.includes(engine))
}

/** Whether two models may not be in memory together. Two modes of one model may. */
function exclude(a: EngineState, b: EngineState): boolean {
  return a.key.split('#', 1)[0] !== b.key.split('#', 1)[0] && a.groups.some(group => b.groups.includes(group))
}

function sum(engines: readonly EngineState[], pool: string): number {
  return engines.reduce((bytes, engine) => bytes + (reservedBy(engine)[pool] ?? 0), 0)
}

/** Whether `newcomer` fits beside `present`, within `share` of the budget. */
function fits(state: SchedulerState, present: readonly EngineState[], newcomer: EngineState, share = 1): boolean {
  if (present.some(other => exclude(other, newcomer))) return false
  if (newcomer.elsewhere) return true
  if (present.filter(({ elsewhere }) => !elsewhere).length >= state.limits.maxLoaded) return false
  return Object.entries(reservedBy(newcomer)).every(([pool, bytes]) => {
    const budget = state.budget[pool]
    return budget === undefined || bytes === 0 || sum(present, pool) + bytes <= budget * share
  })
}

function overfull(state: SchedulerState, present: readonly EngineState[]): string[] {
  return Object.entries(state.budget)
    .filter(([pool, budget]) => sum(present, pool) > budget)
    .map(([pool]) => pool)
}

function isIdle(engine: EngineState): engine is EngineInPhase<'ready'> {
  return isIn(engine, 'ready') && !runningOn(engine) && onlyBackgroundWaits(engine)
}

function isUnused({ phase, queue, clients, pinned }: EngineInPhase<'ready'>): boolean {
  return !pinned && !phase.running.size && !queue.length && !clients.size
}

/** Whether evicting this engine now costs only a load. */
function isEvictable(
  state: SchedulerState,
  other: EngineState,
  plan: Plan,
  now: number
): other is EngineInPhase<'ready' | 'draining'> {
  if (other.pinned || runningOn(other)) return false
  if (isIdle(other)) return true
  if (isIn(other, 'draining')) return plan.claims.has(other) || onlyBackgroundWaits(other)
  return isIn(other, 'ready') && isTurnOver(state, other, plan, now)
}

function isTurnOver(state: SchedulerState, other: EngineInPhase<'ready'>, plan: Plan, now: number): boolean {
  if (!plan.claims.has(other)) return false
  const { at, grants } = getTurnEnd(state, other, plan)
  return now >= at || other.grants >= grants
}

/** How many times more it costs to evict an engine that other clients have used lately, and not only one's own. */
const OTHERS_LOSS_FACTOR = 8
/** … and to evict an engine that no client has used. */
const UNUSED_LOSS_FACTOR = 1 / 8

/** Shorter loads count as this many milliseconds, so that the number of evicted engines matters too. */
const MIN_LOAD_TIME_MS = 200

/** The cost of losing an idle engine: its load time, weighted by how recently it was used. */
function idleLoss({ phase }: EngineInPhase<'ready' | 'draining'>, now: number): number {
  return Math.max(phase.loadTime, MIN_LOAD_TIME_MS) / Math.max(now - phase.lastUsed, 1)
}

/** Idle engines come first, then busy ones, longest turn first. */
function evictionLoss(engine: EngineState, now: number): number {
  if (isIdle(engine)) return idleLoss(engine, now)
  const clientId = isIn(engine, 'ready', 'draining') ? now - engine.phase.readySince : 0
  return 1e6 + 1e6 / Math.max(clientId, 1)
}

/**
 * Returns the cheapest engines whose loss is enough, none of them superfluous. Undefined if even the loss of all is not
 * enough. `enough` must stay true when more engines are added.
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

export function noRoomEver(
  state: SchedulerState,
  engine: EngineState,
  plan: PreparedPlan,
  pinned: readonly EngineState[]
): CorralError {
  const { maxLoaded } = state.limits
  const newcomer = planned(engine, plan)
  const excluding = pinned.filter(other => !fits({ ...state, budget: {} }, [other], newcomer))
  let message: string
  if (pinned.length >= maxLoaded) {
    message = `No room for another model: ${pinned.length} pinned models are loaded, and at most ${maxLoaded} models may be. Unpin one, or raise scheduler.max_loaded_models in config.yaml.`
  } else if (excluding.length && maxLoaded > 1) {
    const names = [...new Set(excluding.map(other => `"${other.name}"`))].join(', ')
    message = `Model "${engine.name}" may not be in memory together with ${names}, which is pinned. Unpin it, or change their groups in config.yaml.`
  } else {
    const tooLarge = Object.entries(reservedBy(newcomer)).some(([pool, bytes]) => bytes > (state.budget[pool] ?? bytes))
    const because = tooLarge
      ? ''
      : ` Pinned models use part of it: ${pinned.map(holding).join(', ')}. Unpin one to make room.`
    const numbers =
      plan.estimate.advice ||
      `It needs ${amounts(plan.estimate.use)}, and all models together may use ${amounts(state.budget)}. A smaller context, a q8_0 cache or fewer slots need less.`
    message = `There is no room in memory for model "${engine.name}". ${numbers}${because}`
  }
  return new CorralError('insufficient_memory', message, { details: detailsOf(state, plan, pinned) })
}

export function noRoomInTime(state: SchedulerState, engine: EngineState, plan: PreparedPlan): CorralError {
  const holders = stayingBeside(state, engine)
  const held = holders.length ? ` In use by ${holders.map(holding).join(', ')}.` : ''
  const needs = overfull(state, [planned(engine, plan), ...holders]).length
    ? `It needs ${amounts(plan.estimate.use)} of the ${amounts(state.budget)} that all models together may use.`
    : `At most ${state.limits.maxLoaded} models may be loaded, and models of one group never together.`
  return new CorralError(
    'insufficient_memory',
    `No room for model "${engine.name}" became free within ${formatDuration(state.limits.roomTimeout)}. ${needs}${held} Try again later, or stop one of them.`,
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

/** Formats an amount as `1.2 GB` for the host pool alone, or `1.2 GB (host), 6.1 GB (CUDA0)`. */
function amounts(use: MemoryUse): string {
  const pools = Object.entries(use).filter(([, bytes]) => bytes > 0)
  const [first] = pools
  if (pools.length === 1 && first?.[0] === 'host') return formatBytes(first[1])
  return pools.map(([pool, bytes]) => `${formatBytes(bytes)} (${pool})`).join(', ') || 'nothing known'
}
