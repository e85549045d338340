import type { UnloadReason } from '../../../core/contracts/hooks.ts'
import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import {
  type Ahead,
  endOfTurn,
  findRoom,
  loadsToAwait,
  noRoomEver,
  noRoomInTime,
  plannedTenant,
  type Room,
  stopsToAwait,
  surplus
} from './eviction.ts'
import { type QueuedRequest, RequestQueue } from './request-queue.ts'
import {
  type Effect,
  type EngineIn,
  type EngineState,
  type Event,
  firstLoad,
  isIn,
  type Loaded,
  type ModelFacts,
  onlyIdleWait,
  type Phase,
  type Plan,
  type PreparedPlan,
  planOf,
  type Reload,
  reservedBy,
  runningOn,
  type SchedulerState,
  satisfies,
  union,
  wishers
} from './scheduler-state.ts'
import {
  chargeReload,
  chargeSlots,
  countDisturbance,
  countLoad,
  expiryOf,
  isOfOthers,
  joinClients,
  mayReloadAt,
  nextRequest,
  toDisplace,
  waitsSince,
  wantedOf
} from './turns.ts'

type RequestEvent = Extract<Event, { type: 'request' }>
type EngineEvent = Extract<Event, { key: string }>

/** One event on its way through the decisions below. */
interface Step {
  state: SchedulerState
  now: number
  /** Actions to carry out, in order. */
  effects: Effect[]
}

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
    const engine = engineOf(state, event)
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
function engineOf(state: SchedulerState, event: EngineEvent): EngineState | undefined {
  const known = state.engines.get(event.key)
  if (known || event.type !== 'request') return known
  const clients: EngineState['clients'] = new Map()
  const engine: EngineState = {
    ...factsOf(event),
    key: event.key,
    phase: { name: 'absent' },
    queue: new RequestQueue(turn => clients.get(turn)?.had ?? 0),
    keepAlive: state.limits.keepAlive,
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

function factsOf({ name, defaults, pinned, groups, elsewhere, maxConcurrent }: ModelFacts): ModelFacts {
  return { name, defaults, pinned, groups, elsewhere, maxConcurrent }
}

function record(step: Step, engine: EngineState, event: EngineEvent): void {
  const { now } = step
  const plan = planOf(engine)
  switch (event.type) {
    case 'request':
      recordRequest(step, engine, event)
      return
    case 'leave':
      leaveQueue(engine, event.id)
      endAnswer(step, engine, event.id)
      undoReloadOf(step, engine, event.id)
      return
    case 'yield':
      recordYield(step, engine, event.id)
      return
    case 'prepared':
      if (event.run !== engine.preparing) return
      engine.preparing = undefined
      if (plan?.run !== event.run) return
      plan.estimate = { use: event.need, certain: event.certain, advice: event.advice }
      plan.since = Math.min(plan.since, now)
      return
    case 'prepare-failed':
      if (event.run !== engine.preparing) return
      engine.preparing = undefined
      if (plan?.run === event.run) fail(step, engine, plan, event.error)
      return
    case 'loaded':
      if (isIn(engine, 'loading') && event.run === engine.phase.run) recordLoaded(step, engine, event)
      return
    case 'load-failed':
      if (isIn(engine, 'loading', 'stopping') && event.run === engine.phase.run) recordEnd(step, engine, event.error)
      return
    case 'gone':
      if ('run' in engine.phase && event.run === engine.phase.run) recordEnd(step, engine, event.error)
      return
    case 'stop':
      recordStop(step, engine, event)
      return
    case 'keep-alive':
      recordKeepAlive(engine, event.keepAlive)
      return
    case 'settings':
      recordSettings(step, engine, event)
      return
    case 'alarm':
      engine.alarm = undefined
  }
}

/**
 * Applies new settings. A load that has not finished starts again with them. A ready engine is replaced when its
 * answers have ended (6).
 */
function recordSettings(step: Step, engine: EngineState, event: Extract<Event, { type: 'settings' }>): void {
  Object.assign(engine, factsOf(event))
  if (event.keepAlive !== undefined) engine.keepAlive = event.keepAlive
  if (!event.outdated) return
  engine.failure = undefined
  if (isIn(engine, 'loading')) abortLoad(step, engine)
  else dropPlan(step, engine)
  if (isIn(engine, 'ready')) engine.phase.outdated = true
  else if (engine.queue.length) planLoad(step, engine)
}

function recordRequest(step: Step, engine: EngineState, event: RequestEvent): void {
  const { state, now, effects } = step
  const { id, turn, options, loadOnly, slots, idle } = event
  if (state.closing) {
    effects.push({ type: 'refuse', id, error: shuttingDown() })
    return
  }
  const ends = isIn(engine, 'absent', 'planned', 'stopping')
  if (ends && !engine.queue.length) {
    engine.keepAlive = event.initialKeepAlive ?? state.limits.keepAlive
    engine.clients.clear()
    engine.share = 0
  }
  Object.assign(engine, factsOf(event))
  if (!idle) {
    const client = joinClients(engine, turn, now)
    if (event.keepAlive !== undefined) client.keepAlive = event.keepAlive
  }
  const error = backOff(engine, event, now) ?? (idle ? undefined : queueFull(step, engine, turn))
  if (error) {
    effects.push({ type: 'refuse', id, error })
    return
  }
  if (!idle && onlyIdleWait(engine)) takeOver(step, engine)
  engine.queue.add({ id, turn, options, loadOnly, slots, arrivedAt: now, isCounted: idle, idle })
}

function leaveQueue({ queue }: EngineState, id: number): void {
  const request = queue.get(id)
  if (request) queue.remove(request)
}

/**
 * Drops a plan made for background requests, because a client has arrived. A load that has begun continues: it may
 * serve the client.
 */
function takeOver(step: Step, engine: EngineState): void {
  if (engine.queue.length > 0 && planOf(engine) && !isIn(engine, 'loading')) dropPlan(step, engine)
}

/** Ends the answer with this id, if it is an answer and not a queued request. */
function endAnswer({ now }: Step, engine: EngineState, id: number): void {
  if (!('running' in engine.phase)) return
  chargeSlots(engine, id, now)
  const ended = engine.phase.running.get(id)
  if (!ended) return
  engine.phase.running.delete(id)
  noteUse(engine.phase, ended.request, now)
}

function noteUse(phase: Loaded, { idle }: QueuedRequest, now: number): void {
  if (idle) phase.idleUsed = now
  else phase.lastUsed = now
}

/**
 * Gives the slots of a request to others and queues it again as the first of its client. It keeps its slots if nobody
 * else waits.
 */
function recordYield(step: Step, engine: EngineState, id: number): void {
  const taken = 'running' in engine.phase ? engine.phase.running.get(id) : undefined
  if (!taken) return
  const { turn, idle } = taken.request
  const { queue } = engine
  const others = idle ? queue.length : queue.clients.length - (queue.of(turn)?.length ?? 0)
  if (others === 0) {
    step.effects.push({ type: 'grant', id, key: engine.key })
    return
  }
  endAnswer(step, engine, id)
  queue.add(taken.request)
}

function recordKeepAlive(engine: EngineState, keepAlive: number): void {
  engine.keepAlive = keepAlive
  for (const client of engine.clients.values()) client.keepAlive = keepAlive
}

function backOff({ phase, failure }: EngineState, event: RequestEvent, now: number): CorralError | undefined {
  if (!failure || (phase.name !== 'absent' && phase.name !== 'planned') || now >= failure.retryAt) return
  const options = firstLoad(event.defaults, [event.options])
  if (!satisfies(options, failure.options) || !satisfies(failure.options, options)) return
  const seconds = Math.ceil((failure.retryAt - now) / 1000)
  return new CorralError(
    failure.error.code,
    `${failure.error.message} It failed ${failure.count} times in a row. The next attempt is possible in ${seconds} s.`,
    { details: failure.error.details, retryAfter: seconds }
  )
}

function queueFull(step: Step, engine: EngineState, turn: string): CorralError | undefined {
  const { maxQueue, queuePerKey } = step.state.limits
  const own = engine.queue.of(turn)?.length ?? 0
  if (own >= queuePerKey) {
    return new CorralError(
      'queue_full',
      `${own} of your requests already wait for this model, and limits.queue_per_key allows ${queuePerKey}. Send more after some have been answered.`,
      { retryAfter: 1 }
    )
  }
  if (engine.queue.clients.length < maxQueue) return undefined
  const full = new CorralError(
    'queue_full',
    `${maxQueue} requests already wait for this model (scheduler.max_queue). Try again in a moment.`,
    { retryAfter: 1 }
  )
  const displaced = toDisplace(engine, turn)
  if (!displaced) return full
  refuse(step, engine, [displaced], full)
  undoReloadOf(step, engine, displaced.id)
  return undefined
}

function recordLoaded({ now }: Step, engine: EngineIn<'loading'>, event: Extract<Event, { type: 'loaded' }>): void {
  const { run, plan } = engine.phase
  const { chosenBy, reload } = plan
  engine.failure = undefined
  if (reload) chargeReload(engine, reload.paidBy, plan.options.num_parallel, reload.since, now)
  become(engine, {
    name: 'ready',
    run,
    options: plan.options,
    chosenBy,
    slots: event.slots ?? plan.options.num_parallel,
    reserved: event.use ?? plan.estimate.use,
    running: new OpenMap(),
    // Serve the client that it was loaded for before another reload begins.
    keptFor: reload && { id: reload.requester, since: now },
    readySince: now,
    lastUsed: now,
    idleUsed: undefined,
    loadTime: event.loadTime,
    giveWay: undefined
  })
}

/** Records that an engine or a load has ended. */
function recordEnd(step: Step, engine: EngineState, error: CorralError | undefined): void {
  const reason = error ?? new CorralError('engine_crashed', 'The engine ended. Send the request again.')
  const { phase } = engine
  switch (phase.name) {
    case 'loading':
      become(engine, { name: 'planned', plan: phase.plan })
      if (reason.code === 'insufficient_memory' && !phase.plan.alone && engine.queue.length) {
        // Try once more, with no idle engine beside it.
        Object.assign(phase.plan, { alone: true, since: step.now, claims: new Map() })
      } else fail(step, engine, phase.plan, reason)
      return
    case 'ready':
      revokeAll(step, engine, reason)
      // It ended by itself: waiting requests expect the options that it ran with.
      become(
        engine,
        engine.queue.length ? { name: 'planned', plan: newPlan(phase.options, phase.chosenBy) } : { name: 'absent' }
      )
      return
    case 'draining':
      revokeAll(step, engine, reason)
      become(engine, { name: 'planned', plan: phase.plan })
      return
    case 'stopping':
      become(engine, phase.plan ? { name: 'planned', plan: phase.plan } : { name: 'absent' })
  }
}

const FIRST_BACK_OFF = 1000
const MAX_BACK_OFF = 60_000

/** Handles a plan that could not be carried out. */
function fail(step: Step, engine: EngineState, plan: Plan, error: CorralError): void {
  if (plan.reload) {
    undoReload(step, engine, plan.reload, error)
    return
  }
  const count = (engine.failure?.count ?? 0) + 1
  const wait = count === 1 ? 0 : Math.min(MAX_BACK_OFF, FIRST_BACK_OFF * 2 ** (count - 2))
  // A missing runtime is not the model's fault, and the search for one has its own back-off. If another machine could
  // not be reached before the load began, the next request tries again as soon as it is back.
  const cause = error.details?.cause
  const blameless =
    error.code === 'runtime_missing' ||
    error.code === 'conversion_not_installed' ||
    error.code === 'shutting_down' ||
    cause === 'rpc_unreachable' ||
    cause === 'rpc_busy'
  engine.failure = blameless ? undefined : { count, options: plan.options, error, retryAt: step.now + wait }
  dropPlan(step, engine)
  refuse(step, engine, toBlame(engine, plan), error)
  if (engine.queue.length) planLoad(step, engine)
}

/** Returns the requests that asked for the options that failed. The others get a load of their own. */
function toBlame(engine: EngineState, { options }: Plan): QueuedRequest[] {
  const { defaults } = engine
  const queue = [...engine.queue]
  const same = (one: LoadOptions) => satisfies(one, options) && satisfies(options, one)
  const alone = queue.filter(request => same(firstLoad(defaults, [request.options])))
  if (alone.length) return alone
  const asking = queue.filter(request => !satisfies(defaults, request.options))
  return asking.length ? asking : queue
}

/**
 * Gives up a reload and, if there is an error, refuses its requester. A running engine continues; one that has ended is
 * loaded again with its previous options.
 */
function undoReload(
  step: Step,
  engine: EngineState,
  { previous, previouslyBy, requester, paidBy, since }: Reload,
  error?: CorralError
): void {
  const asking = engine.queue.get(requester)
  chargeReload(engine, paidBy, previous.num_parallel, since, step.now)
  if (error && asking) refuse(step, engine, [asking], error)
  dropPlan(step, engine)
  if (isIn(engine, 'ready')) serve(step, engine)
  else if (engine.queue.length) planLoad(step, engine, previous, previouslyBy)
}

/** Gives up the reload that this request asked for, unless the load has begun. */
function undoReloadOf(step: Step, engine: EngineState, requester: number): void {
  const reload = planOf(engine)?.reload
  if (reload?.requester === requester && !isIn(engine, 'loading')) undoReload(step, engine, reload)
}

function recordStop(step: Step, engine: EngineState, event: Extract<Event, { type: 'stop' }>): void {
  const save = event.save && !runningOn(engine)
  revokeAll(step, engine, event.running)
  refuse(step, engine, engine.queue, event.waiting)
  engine.failure = undefined
  if (isIn(engine, 'loading')) {
    abortLoad(step, engine)
    return
  }
  dropPlan(step, engine)
  if (isIn(engine, 'ready')) unload(step, engine, 'stopped', save)
}

function shuttingDown(): CorralError {
  return new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.')
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

function advance(step: Step, engine: EngineState): void {
  if (isIn(engine, 'ready')) serve(step, engine)
  else if (isIn(engine, 'draining')) {
    if (!endLongDrain(step, engine)) prepare(step, engine)
  } else if (isIn(engine, 'planned')) {
    if (engine.queue.length) prepare(step, engine)
  } else if (isIn(engine, 'absent') && engine.queue.length) planLoad(step, engine)
}

function serve(step: Step, engine: EngineIn<'ready'>): void {
  const { state, now } = step
  const { phase } = engine
  const { running } = phase
  if (phase.outdated) {
    setAlarm(step, engine, undefined)
    if (running.size && (runningOn(engine) || onlyIdleWait(engine))) return
    unload(step, engine, 'reload')
    if (engine.queue.length) planLoad(step, engine)
    return
  }

  for (const request of engine.queue.loadOnly) {
    if (satisfies(phase.options, wantedOf(engine, phase, request))) grant(step, engine, request)
  }

  let again: number | undefined
  while (engine.queue.length) {
    if (phase.giveWay && (now >= phase.giveWay.at || engine.grants >= phase.giveWay.grants)) break
    const next = nextRequest(engine, now)
    if (next.act === 'reload') {
      const { request } = next
      const error = request.isCounted ? undefined : reloadRefused(step, engine, request)
      if (error) {
        refuse(step, engine, [request], error)
        continue
      }
      if (request.idle && !engine.pinned) {
        // No client uses it. There may be no room for the new load until other models go too.
        unload(step, engine, 'reload')
        planLoad(step, engine)
      } else drain(step, engine, request)
      return
    }
    if (next.act === 'wait') {
      again = next.until
      break
    }
    const { request } = next
    const kept = phase.keptFor?.id === request.id ? phase.keptFor : undefined
    if (!request.idle) displace(step, engine, next.act === 'keep' ? phase.slots : next.slots)
    if (next.act === 'keep') {
      // Nobody may overtake a request for several slots, or it would starve.
      phase.keptFor = kept ?? { id: request.id, since: now }
      break
    }
    phase.keptFor = undefined
    running.set(request.id, { request, slots: next.slots, since: kept?.since ?? now })
    if (!request.idle) engine.grants++
    grant(step, engine, request)
  }

  // A client waits, so background requests must not keep the engine busy.
  if (!onlyIdleWait(engine)) displace(step, engine, phase.slots)

  if (running.size || engine.queue.length) {
    setAlarm(step, engine, again)
    return
  }
  const expires = expiryOf(engine)
  if (state.closing || now >= expires) unload(step, engine, state.closing ? 'stopped' : 'idle')
  else setAlarm(step, engine, expires)
}

/** Revokes background requests, newest first, until `slots` slots are free. */
function displace(step: Step, engine: EngineIn<'ready' | 'draining'>, slots: number): void {
  const { phase, maxConcurrent = Number.POSITIVE_INFINITY } = engine
  const { running } = phase
  let free = phase.slots
  for (const taken of running.values()) free -= taken.slots
  const isEnough = () => free >= slots && running.size < maxConcurrent
  if (isEnough()) return
  for (const [id, taken] of [...running].reverse()) {
    if (isEnough()) return
    if (!taken.request.idle) continue
    running.delete(id)
    free += taken.slots
    phase.idleUsed = step.now
    step.effects.push({ type: 'revoke', id, error: displacedError() })
  }
}

/** `withLease` hides this error: it waits for the next idle slot. */
function displacedError(): CorralError {
  return new CorralError('queue_full', 'The slot was given to a client. Try again in a moment.', {
    details: { displaced: true },
    retryAfter: 1
  })
}

function grant({ now, effects }: Step, engine: EngineIn<'ready'>, request: QueuedRequest): void {
  engine.queue.remove(request)
  noteUse(engine.phase, request, now)
  const client = request.idle ? undefined : engine.clients.get(request.turn)
  if (client) client.lastUsed = now
  effects.push({ type: 'grant', id: request.id, key: engine.key })
}

/**
 * Returns an error if a client has forced too many reloads of engines that others use. Going back to the model's
 * defaults is always allowed.
 */
function reloadRefused(
  { state, now }: Step,
  engine: EngineIn<'ready'>,
  { turn, options }: QueuedRequest
): CorralError | undefined {
  if (!asksForMore(engine.phase.options, options)) return undefined
  const again = mayReloadAt(state, engine, turn, now)
  if (again === undefined) return undefined
  const seconds = Math.ceil((again - now) / 1000)
  return new CorralError(
    'rate_limited',
    `Model "${engine.name}" is loaded with other options, which other clients use, and limits.reloads allows each client ${state.limits.reloads} reloads in ten minutes. Send the request without these options, or try again in ${seconds} s.`,
    { retryAfter: seconds, details: { limit: 'limits.reloads', value: state.limits.reloads } }
  )
}

/** Starts no more answers, and plans a reload with the union of the current options and the request's. */
function drain(step: Step, engine: EngineIn<'ready'>, request: QueuedRequest): void {
  const { state, now } = step
  const { options: previous, chosenBy: previouslyBy } = engine.phase
  if (!request.idle) displace(step, engine, engine.phase.slots)
  const isRestoring = !asksForMore(previous, request.options)
  if (!request.isCounted && !isRestoring) countDisturbance(state, request.turn, now)
  request.isCounted = true
  const plan = newPlan(union(previous, wantedOf(engine, engine.phase, request)), request.turn)
  const paidBy = request.idle ? '' : isRestoring ? previouslyBy : request.turn
  plan.reload = { previous, previouslyBy, requester: request.id, paidBy, since: now }
  become(engine, { ...engine.phase, keptFor: undefined, name: 'draining', plan })
  setAlarm(step, engine, endOfDrain(state, plan.reload))
  prepare(step, engine)
}

/** Whether the client itself asks for other options. `isolated`, which keeps owners apart, is set by the server. */
function asksForMore(loaded: LoadOptions, { isolated: _, ...own }: Partial<LoadOptions>): boolean {
  return !satisfies(loaded, own)
}

/** Longest drain while other clients wait, as a multiple of `fair_wait`. */
const DRAIN = 4

function endOfDrain({ limits }: SchedulerState, { since }: Reload): number {
  return since + DRAIN * limits.fairWait
}

/**
 * (13) Gives up a drain that takes too long because an answer does, if other clients wait. The requester tries again
 * when they have had as much of the engine as its client. It is refused if it has already waited for `room_timeout`.
 */
function endLongDrain(step: Step, engine: EngineIn<'draining'>): boolean {
  const { state, now } = step
  const { running, plan } = engine.phase
  const { reload, chosenBy } = plan
  if (!reload || !running.size || now < endOfDrain(state, reload)) return false
  if ([...engine.queue].every(({ turn }) => turn === chosenBy)) return false
  const requester = engine.queue.get(reload.requester)
  const isLate = requester !== undefined && now >= requester.arrivedAt + state.limits.roomTimeout
  undoReload(step, engine, reload, isLate ? neverIdle(step, engine) : undefined)
  return true
}

function neverIdle({ state }: Step, { name }: EngineState): CorralError {
  return new CorralError(
    'queue_full',
    `Model "${name}" must be reloaded for your options, but other clients' answers did not end within ${formatDuration(state.limits.roomTimeout)}. Send the request without these options, or try again later.`,
    { retryAfter: 60 }
  )
}

type Waiting = EngineState & { phase: { plan: PreparedPlan } }

function waitsForRoom(engine: EngineState): engine is Waiting {
  return planOf(engine)?.estimate !== undefined && engine.queue.length > 0 && !isIn(engine, 'loading')
}

function giveRoom(step: Step): void {
  const engines = [...step.state.engines.values()]
  const gaveWay = engines.filter(engine => 'giveWay' in engine.phase && engine.phase.giveWay)
  for (const { phase } of engines) if ('giveWay' in phase) phase.giveWay = undefined

  const waiting = engines.filter(waitsForRoom).map(engine => {
    const { plan } = engine.phase
    return { engine, plan, rank: onlyIdleWait(engine) ? 1 : 0, since: waitsSince(step.state, engine, plan) }
  })
  waiting.sort(
    (a, b) =>
      a.rank - b.rank || a.since - b.since || a.plan.since - b.plan.since || (a.plan.run ?? 0) - (b.plan.run ?? 0)
  )
  const ahead: Ahead = { leaving: new Set(), coming: [], nextTurn: [], waitsForLoads: false }
  for (const { engine, plan } of waiting) giveRoomTo(step, engine, plan, ahead)

  // The models that claimed their room may have left, or found room elsewhere.
  for (const engine of gaveWay) if (isIn(engine, 'ready')) serve(step, engine)
}

/** Finds room. If a client would have to wait for a load that only background requests need, that load is aborted. */
function roomFor(step: Step, engine: EngineState, plan: PreparedPlan, ahead: Ahead): Room {
  const { state, now } = step
  const room = findRoom(state, engine, plan, ahead, now)
  if (room.when === 'never' || onlyIdleWait(engine)) return room
  if (room.when === 'now' && !loadsToAwait(state, engine, plan, room.victims, ahead).length) return room
  const idle = [...state.engines.values()].filter(other => other.queue.length > 0 && onlyIdleWait(other))
  const loads = idle.filter(other => isIn(other, 'loading'))
  for (const other of loads) abortLoad(step, other)
  return loads.length > 0 ? findRoom(state, engine, plan, ahead, now) : room
}

function giveRoomTo(step: Step, engine: EngineState, plan: PreparedPlan, ahead: Ahead): void {
  const { state } = step
  const newcomer = plannedTenant(engine, plan)

  // (15) Its previous engine is still stopping.
  if (isIn(engine, 'stopping')) {
    ahead.coming.push(newcomer)
    return
  }

  // (16) Pinned models leave too little room for it, now and later.
  const room = roomFor(step, engine, plan, ahead)
  if (room.when === 'never') {
    refuseDemanding(step, engine, plan, noRoomEver(state, engine, plan, room.pinned))
    return
  }

  // (17) There is room after evicting `victims`, which may be none.
  if (room.when === 'now') {
    for (const victim of room.victims) ahead.leaving.add(victim)
    // (17a) It drains: wait for its own answers, then unload it together with the victims.
    if (isIn(engine, 'draining')) {
      ahead.leaving.add(engine)
      ahead.coming.push(newcomer)
      if (!engine.phase.running.size) {
        evict(step, engine, room.victims)
        unload(step, engine, 'reload')
      } else if (plan.reload) setAlarm(step, engine, later(step, endOfDrain(state, plan.reload)))
      reportWaiting(step, engine, [])
      return
    }
    // (17b) Other models are loading, and not all of them are sure to fit.
    const loading = loadsToAwait(state, engine, plan, room.victims, ahead)
    if (loading.length) {
      ahead.waitsForLoads = true
      if (refuseLate(step, engine, plan)) return
      ahead.coming.push(newcomer)
      keepWaiting(step, engine, plan, loading)
      return
    }
    // (17c) Evict the victims, and wait for stopping engines if their memory is needed.
    evict(step, engine, room.victims)
    const stopping = stopsToAwait(state, engine, plan)
    if (stopping.length) {
      ahead.coming.push(newcomer)
      keepWaiting(step, engine, plan, stopping)
      return
    }
    // (17d) Load it.
    load(step, engine, plan)
    return
  }

  // (18) Only busy engines hold the room: claim some, or wait behind the models ahead.
  if (refuseLate(step, engine, plan)) return
  plan.claims = room.claims
  const turnsEnd: number[] = []
  for (const other of room.claimed) {
    ahead.leaving.add(other)
    if (!isIn(other, 'ready')) continue
    other.phase.giveWay = endOfTurn(state, other, plan)
    turnsEnd.push(other.phase.giveWay.at)
  }
  if (room.claimed.length) {
    if (isIn(engine, 'draining')) ahead.leaving.add(engine)
    ahead.coming.push(newcomer)
    keepWaiting(step, engine, plan, room.claimed, turnsEnd)
  } else {
    const blockers = [...ahead.coming, ...ahead.nextTurn]
    ahead.nextTurn.push(newcomer)
    keepWaiting(step, engine, plan, blockers)
  }
}

/** Evicts idle engines for a model. Its client is charged for engines that other clients use. */
function evict(step: Step, engine: EngineState, victims: readonly EngineIn<'ready' | 'draining'>[]): void {
  const { first } = engine.queue.clients
  for (const victim of victims) {
    if (first && isOfOthers(victim, engine, step.now)) countDisturbance(step.state, first.turn, step.now)
    unload(step, victim, 'evicted')
  }
}

/** Refuses the requests that need more than there will ever be room for. The others get a load of their own. */
function refuseDemanding(step: Step, engine: EngineState, plan: Plan, error: CorralError): void {
  if (plan.reload) {
    undoReload(step, engine, plan.reload, error)
    return
  }
  refuse(step, engine, tooDemanding(engine, plan), error)
  dropPlan(step, engine)
  if (engine.queue.length) planLoad(step, engine)
}

/** Among requests that wait together for too large a load, returns those that ask for it. */
function tooDemanding(engine: EngineState, plan: Plan): QueuedRequest[] {
  const { defaults } = engine
  const queue = [...engine.queue]
  const enough = (requests: readonly QueuedRequest[]) =>
    satisfies(firstLoad(defaults, optionsOf(requests)), plan.options)
  const alone = queue.filter(request => enough([request]))
  if (alone.length) return alone
  // They now ask for less than was planned.
  if (!enough(queue)) return []
  const raiser = queue.findLast(
    (request, at) => !satisfies(firstLoad(defaults, optionsOf(queue.slice(0, at))), request.options)
  )
  return raiser ? [raiser] : queue
}

/**
 * (19) Refuses requests that have waited for room longer than `room_timeout`. Returns true if nobody is left to wait
 * for this plan.
 */
function refuseLate(step: Step, engine: EngineState, plan: PreparedPlan): boolean {
  const late: QueuedRequest[] = []
  for (const request of waitingFor(engine, plan)) {
    if (step.now < deadlineOf(step.state, plan, request)) break
    late.push(request)
  }
  if (!late.length) return false
  const error = noRoomInTime(step.state, engine, plan)
  if (plan.reload) {
    undoReload(step, engine, plan.reload, error)
    return true
  }
  refuse(step, engine, late, error)
  if (engine.queue.length) return false
  dropPlan(step, engine)
  return true
}

/**
 * Returns the clients' requests that wait for the room of a plan, in order of arrival and so of their deadlines. Only
 * the requester waits for the room of a reload; the others wait for the engine.
 */
function waitingFor({ queue }: EngineState, { reload }: Plan): Iterable<QueuedRequest> {
  if (!reload) return queue.clients
  const requester = queue.get(reload.requester)
  return requester && !requester.idle ? [requester] : []
}

/** Returns when a request stops waiting for room. */
function deadlineOf({ limits }: SchedulerState, { since }: Plan, { arrivedAt }: QueuedRequest): number {
  return Math.max(arrivedAt, since) + limits.roomTimeout
}

function nextDeadline({ state, now }: Step, engine: EngineState, plan: Plan): number {
  for (const request of waitingFor(engine, plan)) {
    const deadline = deadlineOf(state, plan, request)
    if (deadline > now) return deadline
  }
  return Number.POSITIVE_INFINITY
}

/**
 * Keeps waiting for the room of `holders`, until the next request times out or the turn of a busy engine ends. New
 * requests may ask for more than was planned.
 */
function keepWaiting(
  step: Step,
  engine: EngineState,
  plan: Plan,
  holders: readonly { key: string }[],
  turnsEnd: readonly number[] = []
): void {
  const times = [nextDeadline(step, engine, plan), ...turnsEnd]
  if (isIn(engine, 'draining') && plan.reload) times.push(endOfDrain(step.state, plan.reload))
  setAlarm(step, engine, Math.min(...times.filter(at => at > step.now)))
  reportWaiting(step, engine, holders)
  if (!isIn(engine, 'planned') || plan.reload) return
  if (isEnoughForNew(engine, plan)) return
  const options = firstLoad(plan.options, [{}, ...optionsOf(wishers(engine))])
  if (satisfies(plan.options, options)) return
  engine.phase.plan = { ...newPlan(options, plan.chosenBy), since: plan.since, alone: plan.alone }
  prepare(step, engine)
}

/** Whether the planned load satisfies every waiting client. Only requests queued since the last check are examined. */
function isEnoughForNew({ queue }: EngineState, plan: Plan): boolean {
  const { last } = queue.clients
  if (!last) return false
  for (const { options } of queue.clients.after(plan.checked)) if (!satisfies(plan.options, options)) return false
  plan.checked = last.place
  return true
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
  const { clients, idle } = engine.queue
  for (const line of [clients, idle]) {
    for (const request of line) if (satisfies(plan.options, wantedOf(engine, plan, request))) return true
  }
  return false
}

function become(engine: EngineState, phase: Phase): void {
  engine.phase = phase
}

function newPlan(options: LoadOptions, chosenBy: string): Plan {
  return {
    options,
    chosenBy,
    run: undefined,
    estimate: undefined,
    since: Number.POSITIVE_INFINITY,
    checked: 0,
    claims: new Map(),
    alone: false,
    reload: undefined
  }
}

/**
 * Plans a load, now or after the old engine has stopped. The default options are the union of what waiting requests ask
 * for.
 */
function planLoad(
  step: Step,
  engine: EngineState,
  options: LoadOptions = firstLoad(engine.defaults, optionsOf(wishers(engine))),
  chosenBy: string = wishers(engine).first?.turn ?? ''
): void {
  const plan = newPlan(options, chosenBy)
  if (isIn(engine, 'stopping')) engine.phase.plan = plan
  else {
    become(engine, { name: 'planned', plan })
    prepare(step, engine)
  }
}

/** Has the plan estimated, unless that was done or an earlier estimate is still running. */
function prepare({ state, effects }: Step, engine: EngineState): void {
  const plan = planOf(engine)
  if (!plan || plan.run !== undefined || engine.preparing !== undefined) return
  plan.run = ++state.runs
  engine.preparing = plan.run
  effects.push({ type: 'prepare', key: engine.key, run: plan.run, options: plan.options })
}

function isBeingPrepared({ preparing }: EngineState, { run }: Plan): boolean {
  return run !== undefined && run === preparing
}

/** Cancels a load that has not begun. An engine that drained for it is ready again. */
function dropPlan(step: Step, engine: EngineState): void {
  const { phase } = engine
  const plan = planOf(engine)
  if (plan && isBeingPrepared(engine, plan)) step.effects.push({ type: 'abort-prepare', key: engine.key })
  if (phase.name === 'planned') become(engine, { name: 'absent' })
  else if (phase.name === 'stopping') phase.plan = undefined
  else if (phase.name === 'draining') {
    const { plan: _, ...loaded } = phase
    become(engine, { ...loaded, name: 'ready' })
  }
  setAlarm(step, engine, undefined)
  reportWaiting(step, engine, [])
}

function load(step: Step, engine: EngineState, plan: PreparedPlan): void {
  const run = ++step.state.runs
  const requester = plan.reload && engine.queue.get(plan.reload.requester)
  const first = requester ?? wishers(engine).first
  if (first && !first.idle) countLoad(step.state, first.turn, step.now)
  become(engine, { name: 'loading', run, plan })
  setAlarm(step, engine, undefined)
  reportWaiting(step, engine, [])
  step.effects.push({ type: 'load', key: engine.key, run, options: plan.options })
}

function abortLoad(step: Step, engine: EngineIn<'loading'>): void {
  setAlarm(step, engine, undefined)
  stopping(engine, undefined)
  step.effects.push({ type: 'abort-load', key: engine.key })
}

/** @param save whether the slots' prompt caches may be saved */
function unload(step: Step, engine: EngineIn<'ready' | 'draining'>, reason: UnloadReason, save = true): void {
  displace(step, engine, Number.POSITIVE_INFINITY)
  stopping(engine, planOf(engine))
  setAlarm(step, engine, undefined)
  step.effects.push({ type: 'unload', key: engine.key, save, reason })
}

function stopping(engine: EngineIn<'loading' | 'ready' | 'draining'>, plan: Plan | undefined): void {
  become(engine, { name: 'stopping', run: engine.phase.run, reserved: reservedBy(engine), plan })
}

function refuse(step: Step, engine: EngineState, requests: Iterable<QueuedRequest>, error: CorralError): void {
  for (const request of requests) {
    engine.queue.remove(request)
    step.effects.push({ type: 'refuse', id: request.id, error })
  }
}

function revokeAll(step: Step, { phase }: EngineState, error: CorralError): void {
  if (!('running' in phase)) return
  for (const id of phase.running.keys()) step.effects.push({ type: 'revoke', id, error })
  phase.running.clear()
}

function setAlarm(step: Step, engine: EngineState, at: number | undefined): void {
  const finite = at !== undefined && Number.isFinite(at) ? at : undefined
  if (engine.alarm === finite) return
  engine.alarm = finite
  step.effects.push({ type: 'alarm', key: engine.key, at: finite })
}

/** Returns `at` if it is still to come. */
function later({ now }: Step, at: number): number | undefined {
  return at > now ? at : undefined
}

/** Reports which models hold the room that this one waits for, if that has changed. */
function reportWaiting(step: Step, engine: EngineState, holders: readonly { key: string }[]): void {
  const keys = holders.map(holder => holder.key)
  if (keys.length === engine.waitsFor.length && keys.every(key => engine.waitsFor.includes(key))) return
  engine.waitsFor = keys
  step.effects.push({ type: 'waiting', key: engine.key, holders: keys })
}

function optionsOf(requests: Iterable<QueuedRequest>): Partial<LoadOptions>[] {
  return Array.from(requests, request => request.options)
}
