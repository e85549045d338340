import { CorralError } from '../../core/errors.ts'
import { firstLoad, satisfies } from './load-options.ts'
import { abortLoad, dropPlan, newPlan, prepare, refuseAll, revokeAll, unload, waitFor } from './machine-actions.ts'
import { serve, undoReload } from './machine-serve.ts'
import { createEngine, type Effect, type EngineState, type Event, type SchedulerState } from './machine-state.ts'
import { seatWaiting, unloadSurplus } from './machine-waiting.ts'

/*
 * The scheduler's decisions: events in, effects out. No process, clock or promise is touched here; the driver beside it
 * (`scheduler.ts`) carries the effects out and reports back. `machine-serve.ts` hands out slots, `machine-waiting.ts`
 * gives room to models, `machine-room.ts` knows where there is some.
 */

const FIRST_BACK_OFF = 1000
const LONGEST_BACK_OFF = 60_000

/** Takes one event at time `now` (milliseconds) and returns what is to be done, in order. Changes `state`. */
export function step(state: SchedulerState, event: Event, now: number): Effect[] {
  const effects: Effect[] = []
  if (event.type === 'close') close(state, now, effects)
  else if (event.type === 'budget') state.budget = event.budget
  else {
    const engine = engineOf(state, event.key)
    heed(state, engine, event, now, effects)
    advance(state, engine, now, effects)
  }
  if (!state.closing) seatWaiting(state, now, effects)
  unloadSurplus(state, now, effects)
  for (const engine of state.engines.values()) forget(state, engine, effects)
  return effects
}

function engineOf(state: SchedulerState, key: string): EngineState {
  const engine = state.engines.get(key) ?? createEngine(key, state.limits.keepAlive)
  state.engines.set(key, engine)
  return engine
}

function heed(
  state: SchedulerState,
  engine: EngineState,
  event: Exclude<Event, { type: 'close' | 'budget' }>,
  now: number,
  effects: Effect[]
): void {
  switch (event.type) {
    case 'request':
      onRequest(state, engine, event, now, effects)
      return
    case 'leave':
      engine.queue = engine.queue.filter(waiter => waiter.id !== event.id)
      if (engine.running.delete(event.id)) engine.lastUsed = now
      // A load that nobody waits for any more goes on: the next request will be glad of it.
      if (engine.reload?.asker === event.id && engine.phase !== 'loading') {
        undoReload(state, engine, undefined, now, effects)
      }
      return
    case 'prepared':
      if (event.run !== engine.preparing) return
      engine.preparing = undefined
      if (engine.plan?.run === event.run) {
        const { need, certain, advice } = event
        Object.assign(engine.plan, { need, certain, advice, since: Math.min(engine.plan.since, now) })
      }
      return
    case 'prepare-failed':
      if (event.run !== engine.preparing) return
      engine.preparing = undefined
      if (engine.plan?.run === event.run) onFailure(state, engine, event.error, now, effects)
      return
    case 'loaded':
      if (event.run !== engine.run || engine.phase !== 'loading') return
      engine.phase = 'ready'
      engine.plan = undefined
      engine.failure = undefined
      engine.reload = undefined
      engine.reserved = event.use ?? engine.reserved
      engine.cost = event.cost
      engine.turn = now
      engine.lastUsed = now
      return
    case 'load-failed':
      if (event.run === engine.run) onLoadFailed(state, engine, event.error, now, effects)
      return
    case 'gone':
      if (event.run === engine.run) onGone(state, engine, event.error, now, effects)
      return
    case 'stop':
      onStop(engine, event, effects)
      return
    case 'keep-alive':
      if (!engine.pinned) engine.keepAlive = event.keepAlive
      return
    case 'idle':
      engine.alarm = undefined
  }
}

function close(state: SchedulerState, now: number, effects: Effect[]): void {
  state.closing = true
  const error = new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.')
  for (const engine of state.engines.values()) {
    refuseAll(engine, error, effects)
    if (engine.phase === 'loading') abortLoad(engine, effects)
    else dropPlan(engine, effects)
    if (engine.phase === 'draining') engine.phase = 'ready'
    advance(state, engine, now, effects)
  }
}

function onRequest(
  state: SchedulerState,
  engine: EngineState,
  event: Extract<Event, { type: 'request' }>,
  now: number,
  effects: Effect[]
): void {
  const deny = (error: CorralError) => effects.push({ type: 'refuse', id: event.id, error })
  if (state.closing) {
    deny(new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.'))
    return
  }
  const ending = engine.phase === 'absent' || engine.phase === 'stopping'
  if (ending && !engine.queue.length) engine.keepAlive = event.initialKeepAlive ?? state.limits.keepAlive
  engine.name = event.name
  engine.defaults = event.defaults
  engine.groups = event.groups
  engine.maxConcurrent = event.maxConcurrent
  engine.pinned = event.pinned
  if (event.pinned) engine.keepAlive = Number.POSITIVE_INFINITY
  else if (event.keepAlive !== undefined) engine.keepAlive = event.keepAlive
  const failure = engine.failure
  if (failure && engine.phase === 'absent' && now < failure.retryAt) {
    const asks = firstLoad(event.defaults, [event.asked])
    if (satisfies(asks, failure.options) && satisfies(failure.options, asks)) {
      const seconds = Math.ceil((failure.retryAt - now) / 1000)
      deny(
        new CorralError(
          failure.error.code,
          `${failure.error.message} It failed ${failure.count} times in a row and is tried again in ${seconds} s at the earliest.`,
          { details: failure.error.details, retryAfter: seconds }
        )
      )
      return
    }
  }
  if (engine.queue.length >= state.limits.maxQueue) {
    deny(
      new CorralError(
        'queue_full',
        `${state.limits.maxQueue} requests wait for this model already. Try again in a moment.`,
        { retryAfter: 1 }
      )
    )
    return
  }
  engine.queue.push({ id: event.id, asked: event.asked, loadOnly: event.loadOnly, slots: event.slots, at: now })
}

function onLoadFailed(
  state: SchedulerState,
  engine: EngineState,
  error: CorralError,
  now: number,
  effects: Effect[]
): void {
  if (engine.phase !== 'loading' && engine.phase !== 'stopping') return
  const aborted = engine.phase === 'stopping'
  engine.phase = 'absent'
  engine.reserved = {}
  // After an abort, who waited has been told; a plan is that of later requests.
  if (aborted) return
  const { plan } = engine
  if (error.code === 'insufficient_memory' && plan && !plan.alone && engine.queue.length) {
    Object.assign(plan, { alone: true, since: now, claims: new Map() })
    return
  }
  onFailure(state, engine, error, now, effects)
}

/** A plan could not be carried out. */
function onFailure(
  state: SchedulerState,
  engine: EngineState,
  error: CorralError,
  now: number,
  effects: Effect[]
): void {
  if (engine.reload) {
    // Only the request that asked for the new options hears of it; the old ones come back for the others.
    undoReload(state, engine, error, now, effects)
    return
  }
  const options = engine.plan?.options
  const count = (engine.failure?.count ?? 0) + 1
  const wait = count === 1 ? 0 : Math.min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** (count - 2))
  // Without a runtime there is nothing to hold against the model: the search for one has a back-off of its own.
  engine.failure =
    error.code === 'runtime_missing' || error.code === 'shutting_down' || !options
      ? undefined
      : { count, options, error, retryAt: now + wait }
  dropPlan(engine, effects)
  refuseAll(engine, error, effects)
}

function onGone(
  state: SchedulerState,
  engine: EngineState,
  error: CorralError | undefined,
  now: number,
  effects: Effect[]
): void {
  const reason = error ?? new CorralError('engine_crashed', 'The engine ended. Send the request again.')
  if (engine.phase === 'loading') {
    onLoadFailed(state, engine, reason, now, effects)
    return
  }
  if (engine.phase === 'absent') return
  revokeAll(engine, reason, effects)
  // When it went by itself, what it ran with is what the waiting ones expect.
  if (engine.phase === 'ready' && engine.queue.length) engine.plan = newPlan(engine.options!)
  engine.phase = 'absent'
  engine.reserved = {}
  engine.giveWay = undefined
}

function onStop(engine: EngineState, event: Extract<Event, { type: 'stop' }>, effects: Effect[]): void {
  const save = event.save && !engine.running.size
  revokeAll(engine, event.running, effects)
  refuseAll(engine, event.waiting, effects)
  engine.failure = undefined
  if (engine.phase === 'loading') {
    abortLoad(engine, effects)
    return
  }
  dropPlan(engine, effects)
  if (engine.phase === 'ready' || engine.phase === 'draining') unload(engine, save, effects)
}

/** Does for one engine whatever its state allows now. */
function advance(state: SchedulerState, engine: EngineState, now: number, effects: Effect[]): void {
  if (engine.phase === 'ready') serve(state, engine, now, effects)
  if (engine.phase === 'draining') prepare(state, engine, effects)
  if (engine.phase !== 'absent' || state.closing || !engine.queue.length) return
  engine.plan ??= newPlan(
    firstLoad(
      engine.defaults!,
      engine.queue.map(waiter => waiter.asked)
    )
  )
  prepare(state, engine, effects)
}

/** Drops what nobody needs any more. */
function forget(state: SchedulerState, engine: EngineState, effects: Effect[]): void {
  if (engine.phase !== 'absent' || engine.queue.length) return
  // What is being prepared goes on, as a load does: a conversion is good for the next request too.
  const { plan, preparing } = engine
  if (plan && (plan.run === undefined || plan.run !== preparing)) dropPlan(engine, effects)
  if (!engine.failure && !engine.plan && engine.preparing === undefined) {
    waitFor(engine, [], effects)
    state.engines.delete(engine.key)
  }
}
