import {
  abortLoad,
  dropPlan,
  isBeingPrepared,
  planLoad,
  refuse,
  type Step,
  setAlarm,
  unload
} from './engine-transitions.ts'
import { surplus } from './eviction.ts'
import { getWantedOptions } from './fair-share.ts'
import { giveRoom } from './give-room.ts'
import { type EngineEvent, pickFacts, record, shuttingDown } from './record-event.ts'
import { RequestQueue } from './request-queue.ts'
import {
  type Effect,
  type EngineState,
  type Event,
  isIn,
  type Plan,
  type SchedulerState,
  satisfies
} from './scheduler-state.ts'
import { advance } from './serve-engine.ts'

/**
 * Decides which models are loaded, served and unloaded. Takes one event at time `now` (milliseconds), updates `state`
 * and returns the effects to carry out. It uses no clock, process or promise: `scheduler.ts` carries the effects out
 * and reports their outcome as new events.
 *
 * DECISIONS
 */
export function decide(state: SchedulerState, event: Event, now: number): Effect[] {
  const step: Step = { state, now, effects: [] }
  if (event.type === 'close') close(step)
  else if (event.type === 'budget') state.budget = event.budget
  else {
    const engine = getEngine(state, event)
    if (engine) {
      record(step, engine, event)
      advance(step, engine)
    }
  }
  if (!state.closing) giveRoom(step)
  for (const engine of surplus(state, now)) unload(step, engine, 'evicted')
  for (const engine of state.engines.values()) forget(step, engine)
  return step.effects
}

/** Returns the engine that an event is about. Only a request creates one. */
function getEngine(state: SchedulerState, event: EngineEvent): EngineState | undefined {
  const known = state.engines.get(event.key)
  if (known || event.type !== 'request') return known
  const clients: EngineState['clients'] = new Map()
  const engine: EngineState = {
    ...pickFacts(event),
    key: event.key,
    phase: { name: 'absent' },
    queue: new RequestQueue(clientId => clients.get(clientId)?.used ?? 0),
    keepAlive: state.limits.keepAlive,
    configuredKeepAlive: state.limits.keepAlive,
    clients,
    newClients: 0,
    reloaders: new Set(),
    share: 0,
    grants: 0,
    preparing: undefined,
    alarm: undefined,
    waitsFor: [],
    unwantedSince: undefined,
    failure: undefined
  }
  state.engines.set(event.key, engine)
  return engine
}

function close(step: Step): void {
  step.state.closing = true
  const error = shuttingDown()
  for (const engine of step.state.engines.values()) {
    refuse(step, engine, engine.queue, error)
    if (isIn(engine, 'loading')) abortLoad(step, engine)
    else dropPlan(step, engine)
    advance(step, engine)
  }
}

function forget(step: Step, engine: EngineState): void {
  endUnwanted(step, engine)
  if (engine.queue.length) return
  if (isIn(engine, 'planned') && !isBeingPrepared(engine, engine.phase.plan)) dropPlan(step, engine)
  if (!isIn(engine, 'absent') || engine.failure || engine.preparing !== undefined) return
  step.state.engines.delete(engine.key)
}

/** Ends a load or its preparation if nobody has waited for it for `loadGrace`. */
function endUnwanted(step: Step, engine: EngineState): void {
  const { state, now } = step
  const plan = isIn(engine, 'loading', 'planned') ? engine.phase.plan : undefined
  const isWorking = plan !== undefined && (isIn(engine, 'loading') || isBeingPrepared(engine, plan))
  const isWanted = plan && isWantedBySome(engine, plan)
  if (!isWorking || isWanted) {
    if (isWorking && engine.unwantedSince !== undefined) setAlarm(step, engine, undefined)
    engine.unwantedSince = undefined
    return
  }
  engine.unwantedSince ??= now
  const end = engine.unwantedSince + state.limits.loadGrace
  if (now < end) {
    setAlarm(step, engine, end)
    return
  }
  engine.unwantedSince = undefined
  if (isIn(engine, 'loading')) abortLoad(step, engine)
  else dropPlan(step, engine)
  if (engine.queue.length) planLoad(step, engine, plan.reload?.previous, plan.reload?.previouslyBy)
}

function isWantedBySome(engine: EngineState, plan: Plan): boolean {
  const { clients, background } = engine.queue
  for (const line of [clients, background]) {
    for (const request of line) if (satisfies(plan.options, getWantedOptions(engine, plan, request))) return true
  }
  return false
}
