import type { MemoryUse } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { formatMemory } from '../../core/system/bytes.ts'
import { formatDuration } from '../../core/system/duration.ts'
import { fits, overfull, plannedTenant, tenantOf } from './machine-room.ts'
import type { EngineState, Plan, SchedulerState } from './machine-state.ts'

/*
 * What is said to those who get no room: the numbers, who has it, and what would help.
 */

/** `1.2 GB` of the only pool, or `1.2 GB (host), 6.1 GB (CUDA0)`. */
function amounts(use: MemoryUse): string {
  const pools = Object.entries(use).filter(([, bytes]) => bytes > 0)
  if (pools.length === 1 && pools[0]![0] === 'host') return formatMemory(pools[0]![1])
  return pools.map(([pool, bytes]) => `${formatMemory(bytes)} (${pool})`).join(', ') || 'nothing known'
}

function namesOf(engines: readonly EngineState[]): string {
  return [...new Set(engines.map(engine => `"${engine.name}"`))].join(', ')
}

function holding({ name, reserved, running, queue, pinned, phase }: EngineState): string {
  const does = [
    amounts(reserved),
    ...(pinned ? ['pinned'] : []),
    ...(phase === 'loading' ? ['loading'] : []),
    ...(running.size ? [`${running.size} running`] : []),
    ...(queue.length ? [`${queue.length} waiting`] : [])
  ]
  return `"${name}" (${does.join(', ')})`
}

/** For a model that cannot be loaded however long one waits, since `pinned` stay. */
export function noRoomEver(
  state: SchedulerState,
  engine: EngineState,
  plan: Plan,
  pinned: readonly EngineState[]
): CorralError {
  const details = detailsOf(state, plan, pinned)
  if (pinned.length >= state.limits.maxLoaded) {
    return new CorralError(
      'insufficient_memory',
      `No room for another model: ${pinned.length} pinned models are loaded and at most ${state.limits.maxLoaded} may be. Unpin one or raise scheduler.max_loaded_models in config.yaml.`,
      { details }
    )
  }
  const newcomer = plannedTenant(engine)
  const excluding = pinned.filter(other => !fits({ ...state, budget: {} }, [tenantOf(other)], newcomer))
  if (excluding.length && state.limits.maxLoaded > 1) {
    return new CorralError(
      'insufficient_memory',
      `Model "${engine.name}" may not be in memory together with ${namesOf(excluding)}, which is pinned. Unpin it or change their groups in config.yaml.`,
      { details }
    )
  }
  const own = Object.entries(newcomer.use).filter(([pool, bytes]) => bytes > (state.budget[pool] ?? bytes))
  const because = own.length
    ? ''
    : ` Pinned models hold part of it: ${pinned.map(holding).join(', ')}; unpin one to make room.`
  const numbers =
    plan.advice ||
    `It needs ${amounts(newcomer.use)}, and all models together may take ${amounts(state.budget)}. A smaller context, a q8_0 cache or fewer slots need less.`
  return new CorralError(
    'insufficient_memory',
    `There is no room in memory for model "${engine.name}". ${numbers}${because}`,
    { details }
  )
}

/** For requests that waited for room until their time was over. */
export function noRoomInTime(
  state: SchedulerState,
  engine: EngineState,
  plan: Plan,
  holders: readonly EngineState[]
): CorralError {
  const held = holders.length ? ` It is held by ${holders.map(holding).join(', ')}.` : ''
  const needs = overfull(state, [plannedTenant(engine), ...holders.map(tenantOf)]).length
    ? `It needs ${amounts(plan.need ?? {})} of ${amounts(state.budget)} that all models together may take.`
    : `At most ${state.limits.maxLoaded} models may be loaded, and those of one group never together.`
  return new CorralError(
    'insufficient_memory',
    `No room for model "${engine.name}" came free in ${formatDuration(state.limits.roomTimeout)}. ${needs}${held} Try again later, or stop one of them.`,
    { details: detailsOf(state, plan, holders) }
  )
}

function detailsOf(state: SchedulerState, plan: Plan, holders: readonly EngineState[]): Record<string, unknown> {
  return {
    need: plan.need,
    budget: state.budget,
    held: holders.map(({ name, reserved, running, pinned }) => ({ name, use: reserved, running: running.size, pinned }))
  }
}
