import { OpenSet } from '../../../core/system/open-tables.ts'
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
 * Each decision has a number, which is repeated where it is made.
 *
 * Record the event (`record-event.ts`). For a request:
 *
 * -  (1) corral is shutting down: refuse it.
 * -  (2) The same load has failed repeatedly and backs off: refuse it.
 * -  (3) `queue_per_key` requests of its client already wait: refuse it.
 * -  (4) The queue is full: refuse the newest request of the client with the most, or this request if its client has as
 *        many.
 * -  (5) Otherwise queue it.
 *
 * Let the engine of the event do what needs no more memory (`serve-engine.ts`):
 *
 * -  (6) Its configuration has changed: start no more answers, and unload it after the last one.
 * -  (7) Grant requests that only load the model.
 * -  (8) Another model waits for its memory, and its turn is over: grant nothing.
 * -  (9) The next request needs other options: drain and reload, or refuse it if its client has forced too many reloads.
 *        `nextRequest` in `fair-share.ts` chooses the next request.
 * - (10) The next request needs more slots than are free: keep free slots for it.
 * - (11) Otherwise grant it, and look at the next one.
 * - (12) No request is left: unload the engine after its `keep_alive`.
 * - (13) A drain takes too long while others wait: give it up for now.
 * - (14) There is no engine: plan a load with the options of all waiting requests, and prepare it.
 *
 * Find memory for prepared loads, longest wait first (`give-room.ts`, `eviction.ts`). A model may overtake only if the
 * models ahead are not delayed.
 *
 * - (15) Its previous engine still stops: wait.
 * - (16) Pinned models leave too little memory: refuse the requests that need too much.
 * - (17) There is room after evicting idle engines, or none:
 *        (17a) it drains: unload it and them after its last answer;
 *        (17b) other loads may not leave enough: wait for them;
 *        (17c) evict, and wait for engines that still stop;
 *        (17d) load it.
 * - (18) Only busy engines hold the room: claim some. They grant nothing after `fair_wait` or `fair_count` (8).
 * - (19) A request has waited for room longer than `room_timeout`: refuse it.
 *
 * Clean up:
 *
 * - (20) Engines use more than the budget: evict idle ones.
 * - (21) Nobody has waited for a load for `load_grace`: end it.
 *
 * Background requests (lines of batches) come last everywhere. They are granted what no client waits for, lose it as
 * soon as one does (`displace`), and do not count for queues, shares or whether an engine is busy.
 */
export function decide(state: SchedulerState, event: Event, now: number): Effect[] {
  const step: Step = { state, now, effects: [] }
  if (event.type === 'close') state.closing = true
  else if (event.type === 'budget') state.budget = event.budget
  else {
    const engine = getEngine(state, event)
    if (engine) {
      record(step, engine, event)
      advance(step, engine)
    }
  }
  if (state.closing) endWaiting(step)
  else giveRoom(step)
  // (20) Engines use more than the budget.
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
    resting: new OpenSet(),
    preparing: undefined,
    alarm: undefined,
    waitsFor: [],
    unwantedSince: undefined,
    failure: undefined
  }
  state.engines.set(event.key, engine)
  return engine
}

/** Only answers that have begun may still get a slot, of engines that are loaded. */
function endWaiting(step: Step): void {
  const error = shuttingDown()
  for (const engine of step.state.engines.values()) {
    const mayStay = isIn(engine, 'ready')
    const ending = [...engine.queue].filter(({ continues, background }) => !mayStay || !continues || background)
    refuse(step, engine, ending, error)
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

/** (21) Ends a load or its preparation if nobody has waited for it for `loadGrace`. */
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
