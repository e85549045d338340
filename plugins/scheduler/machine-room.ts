import type { MemoryUse } from '../../core/contracts/builds.ts'
import type { EngineState, SchedulerState } from './machine-state.ts'

/*
 * Where there is room, and whose loss would make some. Nothing is changed here.
 */

/** What takes room: an engine that is there, or one that is to come. */
export interface Tenant {
  key: string
  groups: readonly string[]
  use: MemoryUse
}

/** The least that a load is taken to cost, so that a count of engines matters even where loads are quick. */
const LEAST_COST = 200

/** An engine that is there, with what it holds. */
export function tenantOf({ key, groups, reserved }: EngineState): Tenant {
  return { key, groups, use: reserved }
}

/** An engine as its plan will make it. */
export function plannedTenant({ key, groups, plan }: EngineState): Tenant {
  return { key, groups, use: plan?.need ?? {} }
}

/** Whether two may not be in memory together. A model in two modes is no two models. */
function exclude(a: Tenant, b: Tenant): boolean {
  return a.key.split('#', 1)[0] !== b.key.split('#', 1)[0] && a.groups.some(group => b.groups.includes(group))
}

function sum(tenants: readonly Tenant[], pool: string): number {
  return tenants.reduce((bytes, { use }) => bytes + (use[pool] ?? 0), 0)
}

/** Whether `newcomer` may be in memory beside `present`, within `share` of the budget. */
export function fits(state: SchedulerState, present: readonly Tenant[], newcomer: Tenant, share = 1): boolean {
  if (present.length >= state.limits.maxLoaded) return false
  if (present.some(tenant => exclude(tenant, newcomer))) return false
  return Object.entries(newcomer.use).every(([pool, bytes]) => {
    const budget = state.budget[pool]
    return budget === undefined || bytes === 0 || sum(present, pool) + bytes <= budget * share
  })
}

/** Pools of which these hold more than there may be. */
export function overfull(state: SchedulerState, present: readonly Tenant[]): string[] {
  return Object.entries(state.budget)
    .filter(([pool, budget]) => sum(present, pool) > budget)
    .map(([pool]) => pool)
}

export function without(engines: readonly EngineState[], gone: readonly EngineState[]): Tenant[] {
  return engines.filter(engine => !gone.includes(engine)).map(tenantOf)
}

/** What it costs to lose an idle engine: its load, the dearer the more likely it is soon asked for again. */
export function lossOfIdle(engine: EngineState, now: number): number {
  return Math.max(engine.cost, LEAST_COST) / Math.max(now - engine.lastUsed, 1)
}

/** Idle engines first, then as few busy ones as possible, those whose turn has lasted longest. */
export function lossOfAny(engine: EngineState, now: number): number {
  if (engine.phase === 'ready' && !engine.running.size && !engine.queue.length) return lossOfIdle(engine, now)
  const turn = engine.phase === 'loading' ? 0 : now - engine.turn
  return 1e6 + 1e6 / Math.max(turn, 1)
}

/**
 * The engines whose loss costs least among those whose loss is enough; none of them could be spared. Undefined when
 * even the loss of all is not enough. `enough` must stay true when more engines go.
 */
export function cheapestLoss(
  candidates: readonly EngineState[],
  loss: (engine: EngineState) => number,
  enough: (gone: readonly EngineState[]) => boolean
): EngineState[] | undefined {
  if (enough([])) return []
  if (!candidates.length || !enough(candidates)) return undefined
  const ordered = [...candidates].sort((a, b) => loss(a) - loss(b))
  const single = ordered.find(engine => enough([engine]))
  let several: EngineState[] = []
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
