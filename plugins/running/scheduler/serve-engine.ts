import { CorralError } from '../../../core/errors.ts'
import { formatDuration } from '../../../core/system/duration.ts'
import {
  become,
  displace,
  dropPlan,
  newPlan,
  noteUse,
  planLoad,
  prepare,
  refuse,
  type Step,
  setAlarm,
  unload
} from './engine-transitions.ts'
import {
  chargeReload,
  countForcedReload,
  getExpiry,
  getWantedOptions,
  nextReloadAt,
  nextRequest
} from './fair-share.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  type EngineInPhase,
  type EngineState,
  getPlan,
  isIn,
  onlyBackgroundWaits,
  type Reload,
  runningOn,
  type SchedulerState,
  satisfies,
  union
} from './scheduler-state.ts'

/** Decides everything about an engine that needs no more memory: (6) to (14). */
export function advance(step: Step, engine: EngineState): void {
  if (isIn(engine, 'ready')) serve(step, engine)
  else if (isIn(engine, 'draining')) {
    if (!endLongDrain(step, engine)) prepare(step, engine)
  } else if (isIn(engine, 'planned')) {
    if (engine.queue.length) prepare(step, engine)
  } else if (isIn(engine, 'absent') && engine.queue.length) {
    // (14) There is no engine.
    planLoad(step, engine)
  }
}

export function serve(step: Step, engine: EngineInPhase<'ready'>): void {
  const { state, now } = step
  const { phase } = engine
  const { running } = phase
  // (6) Its configuration has changed.
  if (phase.outdated) {
    setAlarm(step, engine, undefined)
    if (running.size && (runningOn(engine) || onlyBackgroundWaits(engine))) return
    unload(step, engine, 'reload')
    if (engine.queue.length) planLoad(step, engine)
    return
  }

  // (7) Grant requests that only load the model.
  for (const request of engine.queue.loadOnly) {
    if (satisfies(phase.options, getWantedOptions(engine, phase, request))) grant(step, engine, request)
  }

  let again: number | undefined
  while (engine.queue.length) {
    // (8) Another model's turn has come.
    if (phase.giveWay && !state.closing && (now >= phase.giveWay.at || engine.grants >= phase.giveWay.grants)) break
    const next = nextRequest(engine, now)
    // (9) It needs other options.
    if (next.act === 'reload') {
      const { request } = next
      const error = request.isCounted ? undefined : reloadRefused(step, engine, request)
      if (error) {
        refuse(step, engine, [request], error)
        continue
      }
      if (request.background && !engine.pinned) {
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
    if (!request.background) displace(step, engine, next.act === 'keep' ? phase.slots : next.slots)
    if (next.act === 'keep') {
      // (10) Nobody may overtake a request for several slots, or it would starve.
      phase.keptFor = kept ?? { id: request.id, since: now }
      break
    }
    // (11) Grant it.
    phase.keptFor = undefined
    running.set(request.id, { request, slots: next.slots, since: kept?.since ?? now })
    if (!request.background) engine.grants++
    grant(step, engine, request)
  }

  // A client waits, so background requests must not keep the engine busy.
  if (!onlyBackgroundWaits(engine)) displace(step, engine, phase.slots)

  if (running.size || engine.queue.length) {
    setAlarm(step, engine, again)
    return
  }
  // (12) No request is left.
  const expires = engine.resting.size > 0 ? Number.POSITIVE_INFINITY : getExpiry(engine)
  if (now >= expires || (state.closing && engine.resting.size === 0))
    unload(step, engine, state.closing ? 'stopped' : 'idle')
  else setAlarm(step, engine, expires)
}

/** Gives up a reload, and refuses its requester if there is an error. An engine that has ended gets its old options. */
export function undoReload(
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

/** Gives up the reload for this request, unless the load has begun. */
export function undoReloadFor(step: Step, engine: EngineState, requester: number): void {
  const reload = getPlan(engine)?.reload
  if (reload?.requester === requester && !isIn(engine, 'loading')) undoReload(step, engine, reload)
}

export function grant({ now, effects }: Step, engine: EngineInPhase<'ready'>, request: QueuedRequest): void {
  engine.queue.remove(request)
  noteUse(engine.phase, request, now)
  const client = request.background ? undefined : engine.clients.get(request.clientId)
  if (client) client.lastUsed = now
  effects.push({ type: 'grant', id: request.id, key: engine.key })
}

/** Returns an error if a client has forced too many reloads of engines that others use. Defaults are always allowed. */
function reloadRefused(
  { state, now }: Step,
  engine: EngineInPhase<'ready'>,
  { clientId, options }: QueuedRequest
): CorralError | undefined {
  if (satisfies(engine.phase.options, options)) return undefined
  const again = nextReloadAt(state, engine, clientId, now)
  if (again === undefined) return undefined
  const seconds = Math.ceil((again - now) / 1000)
  return new CorralError(
    'rate_limited',
    `Model "${engine.name}" is loaded with other options, which other clients use, and limits.reloads allows each client ${state.limits.reloads} reloads in ten minutes. Send the request without these options, or try again in ${seconds} s.`,
    { retryAfter: seconds, details: { limit: 'limits.reloads', value: state.limits.reloads } }
  )
}

/** Starts no more answers, and plans a reload with the union of the current options and the request's. */
function drain(step: Step, engine: EngineInPhase<'ready'>, request: QueuedRequest): void {
  const { state, now } = step
  const { options: previous, chosenBy: previouslyBy } = engine.phase
  if (!request.background) displace(step, engine, engine.phase.slots)
  const isRestoring = satisfies(previous, request.options)
  if (!request.isCounted && !isRestoring) countForcedReload(state, request.clientId, now)
  request.isCounted = true
  const wanted = getWantedOptions(engine, engine.phase, request)
  const options = union(previous, wanted)
  const plan = newPlan(request.fewerSlots ? { ...options, ...wanted } : options, request.clientId)
  const paidBy = request.background ? '' : isRestoring ? previouslyBy : request.clientId
  plan.reload = { previous, previouslyBy, requester: request.id, paidBy, since: now }
  become(engine, { ...engine.phase, keptFor: undefined, name: 'draining', plan })
  setAlarm(step, engine, getDrainDeadline(state, plan.reload))
  prepare(step, engine)
}

/** Longest drain while other clients wait, as a multiple of `fair_wait`. */
const MAX_DRAIN_FAIR_WAITS = 4

export function getDrainDeadline({ limits }: SchedulerState, { since }: Reload): number {
  return since + MAX_DRAIN_FAIR_WAITS * limits.fairWait
}

/**
 * (13) Gives up a drain that takes too long because of a long answer, if other clients wait. The requester tries again
 * when they have had as much of the engine as its client. It is refused if it has already waited for `room_timeout`.
 */
function endLongDrain(step: Step, engine: EngineInPhase<'draining'>): boolean {
  const { state, now } = step
  const { running, plan } = engine.phase
  const { reload, chosenBy } = plan
  if (!reload || !running.size || now < getDrainDeadline(state, reload)) return false
  if ([...engine.queue].every(({ clientId }) => clientId === chosenBy)) return false
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
