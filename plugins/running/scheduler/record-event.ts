import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import {
  abortLoad,
  become,
  dropPlan,
  newPlan,
  noteUse,
  planLoad,
  refuse,
  revokeAll,
  type Step,
  unload
} from './engine-transitions.ts'
import { chargeReload, chargeSlots, findDisplaceable, joinClients } from './fair-share.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  type EngineInPhase,
  type EngineState,
  type Event,
  firstLoad,
  getPlan,
  isIn,
  type ModelFacts,
  onlyBackgroundWaits,
  type Plan,
  runningOn,
  satisfies
} from './scheduler-state.ts'
import { undoReload, undoReloadFor } from './serve-engine.ts'

type RequestEvent = Extract<Event, { type: 'request' }>

export type EngineEvent = Extract<Event, { key: string }>

export function pickFacts({ name, defaults, pinned, groups, elsewhere, maxConcurrent }: ModelFacts): ModelFacts {
  return { name, defaults, pinned, groups, elsewhere, maxConcurrent }
}

export function record(step: Step, engine: EngineState, event: EngineEvent): void {
  const { now } = step
  const plan = getPlan(engine)
  switch (event.type) {
    case 'request':
      recordRequest(step, engine, event)
      return
    case 'leave': {
      const queued = engine.queue.get(event.id)
      if (queued) engine.queue.remove(queued)
      endAnswer(step, engine, event.id)
      undoReloadFor(step, engine, event.id)
      if (event.rests) engine.resting.add(event.id)
      else engine.resting.delete(event.id)
      return
    }
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
      engine.keepAlive = event.keepAlive
      for (const client of engine.clients.values()) client.keepAlive = event.keepAlive
      return
    case 'settings':
      recordSettings(step, engine, event)
      return
    case 'alarm':
      engine.alarm = undefined
  }
}

function applyFacts({ state }: Step, engine: EngineState, event: Extract<Event, ModelFacts>): void {
  Object.assign(engine, pickFacts(event))
  engine.configuredKeepAlive = event.configuredKeepAlive ?? state.limits.keepAlive
}

/**
 * Applies new settings. A load that has not finished starts again with them. A ready engine is replaced when its
 * answers have ended (6).
 */
function recordSettings(step: Step, engine: EngineState, event: Extract<Event, { type: 'settings' }>): void {
  const { configuredKeepAlive } = engine
  applyFacts(step, engine, event)
  if (engine.configuredKeepAlive !== configuredKeepAlive) engine.keepAlive = engine.configuredKeepAlive
  if (!event.outdated) return
  engine.failure = undefined
  if (isIn(engine, 'loading')) abortLoad(step, engine)
  else dropPlan(step, engine)
  if (isIn(engine, 'ready')) engine.phase.outdated = true
  else if (engine.queue.length) planLoad(step, engine)
}

function recordRequest(step: Step, engine: EngineState, event: RequestEvent): void {
  const { state, now, effects } = step
  const { id, clientId, options, fewerSlots, loadOnly, slots, background, continues } = event
  // (1) corral is shutting down. Answers may end.
  if (state.closing && !(continues && isIn(engine, 'ready'))) {
    effects.push({ type: 'refuse', id, error: shuttingDown() })
    return
  }
  applyFacts(step, engine, event)
  const ends = isIn(engine, 'absent', 'planned', 'stopping')
  if (ends && !engine.queue.length) {
    engine.keepAlive = engine.configuredKeepAlive
    engine.clients.clear()
    engine.share = 0
  }
  if (!background) {
    const client = joinClients(engine, clientId, now)
    if (event.keepAlive !== undefined) client.keepAlive = event.keepAlive
  }
  // (2), (3), (4) The load backs off, or there is no place in the queue.
  const error = backOff(engine, event, now) ?? (background || continues ? undefined : queueFull(step, engine, clientId))
  if (error) {
    effects.push({ type: 'refuse', id, error })
    return
  }
  // (5) Queue it.
  if (!background && onlyBackgroundWaits(engine)) takeOver(step, engine)
  engine.queue.add({
    id,
    clientId,
    options,
    fewerSlots,
    loadOnly,
    slots,
    arrivedAt: now,
    isCounted: background,
    background,
    continues
  })
}

/** Drops a plan made for background requests, because a client has arrived. A load that has begun may serve it too. */
function takeOver(step: Step, engine: EngineState): void {
  if (engine.queue.length > 0 && getPlan(engine) && !isIn(engine, 'loading')) dropPlan(step, engine)
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

/** Gives a request's slots to others, if any wait, and queues it again as the first of its client. */
function recordYield(step: Step, engine: EngineState, id: number): void {
  const taken = 'running' in engine.phase ? engine.phase.running.get(id) : undefined
  if (!taken) return
  const { clientId, background } = taken.request
  const { queue } = engine
  const others = background ? queue.length : queue.clients.length - (queue.byClient(clientId)?.length ?? 0)
  if (others === 0) {
    step.effects.push({ type: 'grant', id, key: engine.key })
    return
  }
  endAnswer(step, engine, id)
  queue.add(taken.request)
}

function backOff({ phase, failure }: EngineState, event: RequestEvent, now: number): CorralError | undefined {
  // (2) The same load has failed repeatedly.
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

function queueFull(step: Step, engine: EngineState, clientId: string): CorralError | undefined {
  const { maxQueue, queuePerKey } = step.state.limits
  const own = engine.queue.byClient(clientId)?.length ?? 0
  // (3) Too many requests of its client wait.
  if (own >= queuePerKey) {
    return new CorralError(
      'queue_full',
      `${own} of your requests already wait for this model, and limits.queue_per_key allows ${queuePerKey}. Send more after some have been answered.`,
      { retryAfter: 1 }
    )
  }
  // (4) The queue is full: another client may have to give up a place.
  if (engine.queue.clients.length < maxQueue) return undefined
  const full = new CorralError(
    'queue_full',
    `${maxQueue} requests already wait for this model (scheduler.max_queue). Try again in a moment.`,
    { retryAfter: 1 }
  )
  const displaced = findDisplaceable(engine, clientId)
  if (!displaced) return full
  refuse(step, engine, [displaced], full)
  undoReloadFor(step, engine, displaced.id)
  return undefined
}

function recordLoaded(
  { now }: Step,
  engine: EngineInPhase<'loading'>,
  event: Extract<Event, { type: 'loaded' }>
): void {
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
    backgroundUsed: undefined,
    loadTime: event.loadTime,
    giveWay: undefined
  })
}

function recordEnd(step: Step, engine: EngineState, error: CorralError | undefined): void {
  const reason = error ?? new CorralError('engine_crashed', 'The engine ended. Send the request again.')
  const { phase } = engine
  switch (phase.name) {
    case 'loading':
      become(engine, { name: 'planned', plan: phase.plan })
      if (reason.code === 'insufficient_memory' && !phase.plan.alone && engine.queue.length) {
        // Try once more, without idle engines beside it.
        Object.assign(phase.plan, { alone: true, since: step.now, claims: new Map() })
      } else fail(step, engine, phase.plan, reason)
      return
    case 'ready':
      revokeAll(step, engine, reason)
      // The engine ended unexpectedly. Waiting requests expect the options that it ran with.
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

const FIRST_BACK_OFF_MS = 1000

const MAX_BACK_OFF_MS = 60_000

function fail(step: Step, engine: EngineState, plan: Plan, error: CorralError): void {
  if (plan.reload) {
    undoReload(step, engine, plan.reload, error)
    return
  }
  const count = (engine.failure?.count ?? 0) + 1
  const wait = count === 1 ? 0 : Math.min(MAX_BACK_OFF_MS, FIRST_BACK_OFF_MS * 2 ** (count - 2))
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
  refuse(step, engine, getRequestsToBlame(engine, plan), error)
  if (engine.queue.length) planLoad(step, engine)
}

/** Returns the requests with the options that failed. Other requests get their own load. */
function getRequestsToBlame(engine: EngineState, { options }: Plan): QueuedRequest[] {
  const { defaults } = engine
  const queue = [...engine.queue]
  const same = (one: LoadOptions) => satisfies(one, options) && satisfies(options, one)
  const alone = queue.filter(request => same(firstLoad(defaults, [request.options])))
  if (alone.length) return alone
  const asking = queue.filter(request => !satisfies(defaults, request.options))
  return asking.length ? asking : queue
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

export function shuttingDown(): CorralError {
  return new CorralError('shutting_down', 'corral is shutting down. Try again when it is back.')
}
