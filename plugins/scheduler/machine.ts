import { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/options.ts'
import { firstLoad, satisfies, union } from './load-options.ts'
import type { Effect, EngineState, Event, SchedulerState } from './machine-state.ts'

/*
 * The scheduler's decisions: events in, effects out. No process, clock or promise is touched here; the driver beside it
 * (`scheduler.ts`) carries the effects out and reports back.
 */

const FIRST_BACK_OFF = 1000
const LONGEST_BACK_OFF = 60_000

function engineOf(state: SchedulerState, key: string): EngineState {
  let engine = state.engines.get(key)
  if (!engine) {
    engine = {
      key,
      phase: 'absent',
      options: undefined,
      next: undefined,
      reload: undefined,
      running: new Set(),
      queue: [],
      keepAlive: state.limits.keepAlive,
      pinned: false,
      lastUsed: 0,
      failure: undefined
    }
    state.engines.set(key, engine)
  }
  return engine
}

/** Takes one event at time `now` (milliseconds) and returns what is to be done, in order. Changes `state`. */
export function step(state: SchedulerState, event: Event, now: number): Effect[] {
  const effects: Effect[] = []
  if (event.type === 'close') {
    state.closing = true
    const error = new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.')
    for (const engine of state.engines.values()) {
      engine.next = undefined
      refuseQueue(engine, error, effects)
      if (engine.phase === 'loading') abortLoad(engine, effects)
      advance(state, engine, now, effects)
    }
    return effects
  }
  const engine = engineOf(state, event.key)
  switch (event.type) {
    case 'request':
      onRequest(state, engine, event, now, effects)
      break
    case 'leave':
      engine.queue = engine.queue.filter(waiter => waiter.id !== event.id)
      if (engine.running.delete(event.id)) engine.lastUsed = now
      if (engine.phase === 'draining' && engine.reload?.asker === event.id) {
        engine.phase = 'ready'
        engine.next = undefined
        engine.reload = undefined
      }
      // A load that nobody waits for any more goes on: the next request will be glad of it.
      break
    case 'loaded':
      engine.phase = 'ready'
      engine.failure = undefined
      engine.reload = undefined
      engine.lastUsed = now
      break
    case 'load-failed':
      onLoadFailed(engine, event.error, now, effects)
      break
    case 'gone':
      onGone(engine, event.error, effects)
      break
    case 'stop':
      onStop(engine, event.running, event.waiting, effects)
      break
    case 'keep-alive':
      if (!engine.pinned) engine.keepAlive = event.keepAlive
      break
    case 'idle':
      break
  }
  advance(state, engine, now, effects)
  advanceWaiting(state, engine, now, effects)
  if (engine.phase === 'absent' && !engine.queue.length && !engine.failure) state.engines.delete(engine.key)
  return effects
}

function onRequest(
  state: SchedulerState,
  engine: EngineState,
  event: Extract<Event, { type: 'request' }>,
  now: number,
  effects: Effect[]
): void {
  const refuse = (error: CorralError) => effects.push({ type: 'refuse', id: event.id, error })
  if (state.closing) {
    refuse(new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.'))
    return
  }
  engine.pinned = event.pinned
  const ending = engine.phase === 'stopping' && !engine.next
  if ((engine.phase === 'absent' || ending) && !engine.queue.length) {
    engine.keepAlive = event.initialKeepAlive ?? state.limits.keepAlive
    engine.options = event.defaults
  }
  if (event.pinned) engine.keepAlive = Number.POSITIVE_INFINITY
  else if (event.keepAlive !== undefined) engine.keepAlive = event.keepAlive
  const failure = engine.failure
  if (failure && engine.phase === 'absent' && now < failure.retryAt) {
    const asks = firstLoad(event.defaults, [event.asked])
    if (satisfies(asks, failure.options) && satisfies(failure.options, asks)) {
      const seconds = Math.ceil((failure.retryAt - now) / 1000)
      refuse(
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
    refuse(
      new CorralError(
        'queue_full',
        `${state.limits.maxQueue} requests wait for this model already. Try again in a moment.`,
        { retryAfter: 1 }
      )
    )
    return
  }
  engine.queue.push({ id: event.id, asked: event.asked, loadOnly: event.loadOnly })
}

function onLoadFailed(engine: EngineState, error: CorralError, now: number, effects: Effect[]): void {
  const { reload, options } = engine
  if (engine.phase === 'stopping') {
    // An aborted load: who waited has been told.
    engine.phase = 'absent'
    return
  }
  engine.phase = 'absent'
  if (reload) {
    // Only the request that asked for the new options hears of it; the old ones come back for the others.
    const waiting = engine.queue.length
    engine.queue = engine.queue.filter(waiter => waiter.id !== reload.asker)
    if (engine.queue.length < waiting) effects.push({ type: 'refuse', id: reload.asker, error })
    engine.reload = undefined
    engine.next = reload.previous
    return
  }
  const count = (engine.failure?.count ?? 0) + 1
  const wait = count === 1 ? 0 : Math.min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** (count - 2))
  // Without a runtime there is nothing to hold against the model: the search for one has a back-off of its own.
  engine.failure =
    error.code === 'runtime_missing' || error.code === 'shutting_down' || !options
      ? undefined
      : { count, options, error, retryAt: now + wait }
  refuseQueue(engine, error, effects)
}

function onGone(engine: EngineState, error: CorralError | undefined, effects: Effect[]): void {
  const reason = error ?? new CorralError('engine_crashed', 'The engine ended. Send the request again.')
  for (const id of engine.running) effects.push({ type: 'revoke', id, error: reason })
  engine.running.clear()
  if (engine.phase === 'ready' || engine.phase === 'draining') {
    // It went by itself. What it ran with is what the waiting ones expect.
    engine.next = engine.queue.length ? (engine.next ?? engine.options) : undefined
  }
  engine.phase = 'absent'
}

function onStop(engine: EngineState, running: CorralError, waiting: CorralError, effects: Effect[]): void {
  for (const id of engine.running) effects.push({ type: 'revoke', id, error: running })
  engine.running.clear()
  refuseQueue(engine, waiting, effects)
  engine.next = undefined
  engine.reload = undefined
  engine.failure = undefined
  if (engine.phase === 'loading') abortLoad(engine, effects)
  else if (engine.phase === 'ready' || engine.phase === 'draining') unload(engine, effects)
}

function refuseQueue(engine: EngineState, error: CorralError, effects: Effect[]): void {
  for (const waiter of engine.queue) effects.push({ type: 'refuse', id: waiter.id, error })
  engine.queue = []
}

function abortLoad(engine: EngineState, effects: Effect[]): void {
  engine.phase = 'stopping'
  engine.reload = undefined
  effects.push({ type: 'abort-load', key: engine.key })
}

function unload(engine: EngineState, effects: Effect[]): void {
  engine.phase = 'stopping'
  effects.push({ type: 'alarm', key: engine.key, at: undefined }, { type: 'unload', key: engine.key })
}

function load(engine: EngineState, options: LoadOptions, effects: Effect[]): void {
  engine.phase = 'loading'
  engine.options = options
  engine.next = undefined
  effects.push({ type: 'load', key: engine.key, options })
}

/** Does for one engine whatever its state allows now. */
function advance(state: SchedulerState, engine: EngineState, now: number, effects: Effect[]): void {
  if (engine.phase === 'ready') serve(state, engine, now, effects)
  if (engine.phase === 'draining' && !engine.running.size) unload(engine, effects)
  if (engine.phase === 'absent' && !state.closing && engine.queue.length) start(state, engine, effects)
  else if (engine.phase === 'absent') {
    engine.next = undefined
    engine.reload = undefined
  }
}

/** Hands out slots in order of arrival; the first request that the engine cannot satisfy begins a drain. */
function serve(state: SchedulerState, engine: EngineState, now: number, effects: Effect[]): void {
  const options = engine.options!
  for (const waiter of engine.queue.filter(waiter => waiter.loadOnly && satisfies(options, waiter.asked))) {
    engine.queue.splice(engine.queue.indexOf(waiter), 1)
    engine.lastUsed = now
    effects.push({ type: 'grant', id: waiter.id, key: engine.key })
  }
  while (engine.queue.length) {
    const head = engine.queue[0]!
    if (!satisfies(options, head.asked)) {
      engine.phase = 'draining'
      engine.next = union(options, head.asked)
      engine.reload = { previous: options, asker: head.id }
      break
    }
    if (engine.running.size >= options.num_parallel) break
    engine.queue.shift()
    engine.running.add(head.id)
    engine.lastUsed = now
    effects.push({ type: 'grant', id: head.id, key: engine.key })
  }
  if (engine.phase !== 'ready') return
  if (engine.running.size || engine.queue.length) {
    effects.push({ type: 'alarm', key: engine.key, at: undefined })
  } else if (state.closing || now >= engine.lastUsed + engine.keepAlive) {
    unload(engine, effects)
  } else {
    const at = engine.lastUsed + engine.keepAlive
    effects.push({ type: 'alarm', key: engine.key, at: Number.isFinite(at) ? at : undefined })
  }
}

/** Starts a load when there is room, else makes room by unloading whoever has been idle longest. */
function start(state: SchedulerState, engine: EngineState, effects: Effect[]): void {
  const others = [...state.engines.values()].filter(other => other !== engine && other.phase !== 'absent')
  if (others.length >= state.limits.maxLoaded) {
    const leaving = others.filter(other => other.phase === 'stopping' && !other.next).length
    if (others.length - leaving < state.limits.maxLoaded) return
    const idle = others
      .filter(other => other.phase === 'ready' && !other.running.size && !other.queue.length && !other.pinned)
      .sort((a, b) => a.lastUsed - b.lastUsed)[0]
    if (idle) unload(idle, effects)
    else if (others.every(other => other.pinned)) {
      refuseQueue(
        engine,
        new CorralError(
          'insufficient_memory',
          `No room for another model: ${others.length} pinned models are loaded and at most ${state.limits.maxLoaded} may be. Unpin one or raise scheduler.max_loaded_models in config.yaml.`
        ),
        effects
      )
    }
    return
  }
  const asked = engine.queue.map(waiter => waiter.asked)
  load(engine, engine.next ?? firstLoad(engine.options!, asked), effects)
}

/** What one engine did may make room for others: those that wait for it get their chance, longest waiting first. */
function advanceWaiting(state: SchedulerState, except: EngineState, now: number, effects: Effect[]): void {
  const waiting = [...state.engines.values()]
    .filter(engine => engine !== except && engine.phase === 'absent' && engine.queue.length)
    .sort((a, b) => a.queue[0]!.id - b.queue[0]!.id)
  for (const engine of waiting) advance(state, engine, now, effects)
}
