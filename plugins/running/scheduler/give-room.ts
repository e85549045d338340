import type { CorralError } from '../../../core/errors.ts'
import {
  abortLoad,
  dropPlan,
  getOptions,
  ifLater,
  load,
  newPlan,
  planLoad,
  prepare,
  refuse,
  reportWaiting,
  type Step,
  setAlarm,
  unload
} from './engine-transitions.ts'
import {
  type Ahead,
  findRoom,
  getTurnEnd,
  loadsToAwait,
  noRoomEver,
  noRoomInTime,
  planned,
  type Room,
  stopsToAwait
} from './eviction.ts'
import { countForcedReload, isUsedByOthers, waitsSince } from './fair-share.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  decidingRequests,
  type EngineInPhase,
  type EngineState,
  firstLoad,
  getPlan,
  isIn,
  onlyBackgroundWaits,
  type Plan,
  type PreparedPlan,
  type SchedulerState,
  satisfies
} from './scheduler-state.ts'
import { getDrainDeadline, serve, undoReload } from './serve-engine.ts'

function waitsForRoom(engine: EngineState): engine is EngineState & { phase: { plan: PreparedPlan } } {
  return getPlan(engine)?.estimate !== undefined && engine.queue.length > 0 && !isIn(engine, 'loading')
}

/** Gives memory to the prepared loads, longest wait first: (15) to (19). */
export function giveRoom(step: Step): void {
  const engines = [...step.state.engines.values()]
  const gaveWay = engines.filter(engine => 'giveWay' in engine.phase && engine.phase.giveWay)
  for (const { phase } of engines) if ('giveWay' in phase) phase.giveWay = undefined

  const waiting = engines.filter(waitsForRoom).map(engine => {
    const { plan } = engine.phase
    return { engine, plan, rank: onlyBackgroundWaits(engine) ? 1 : 0, since: waitsSince(step.state, engine, plan) }
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
  if (room.when === 'never' || onlyBackgroundWaits(engine)) return room
  if (room.when === 'now' && !loadsToAwait(state, engine, plan, room.victims, ahead).length) return room
  const background = [...state.engines.values()].filter(other => other.queue.length > 0 && onlyBackgroundWaits(other))
  const loads = background.filter(other => isIn(other, 'loading'))
  for (const other of loads) abortLoad(step, other)
  return loads.length > 0 ? findRoom(state, engine, plan, ahead, now) : room
}

function giveRoomTo(step: Step, engine: EngineState, plan: PreparedPlan, ahead: Ahead): void {
  const { state } = step
  const newcomer = planned(engine, plan)

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
      } else if (plan.reload) setAlarm(step, engine, ifLater(step, getDrainDeadline(state, plan.reload)))
      reportWaiting(step, engine, [])
      return
    }
    // (17b) Other models are loading, and some of them may not fit.
    const loading = loadsToAwait(state, engine, plan, room.victims, ahead)
    if (loading.length) {
      ahead.waitsForLoads = true
      if (refuseTimedOut(step, engine, plan)) return
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

  // (18) The room is in use by busy engines: claim some, or wait behind the models ahead.
  if (refuseTimedOut(step, engine, plan)) return
  plan.claims = room.claims
  const turnsEnd: number[] = []
  for (const other of room.claimed) {
    ahead.leaving.add(other)
    if (!isIn(other, 'ready')) continue
    other.phase.giveWay = getTurnEnd(state, other, plan)
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
function evict(step: Step, engine: EngineState, victims: readonly EngineInPhase<'ready' | 'draining'>[]): void {
  const { first } = engine.queue.clients
  for (const victim of victims) {
    if (first && isUsedByOthers(victim, engine, step.now)) countForcedReload(step.state, first.clientId, step.now)
    unload(step, victim, 'evicted')
  }
}

/** Refuses the requests that need more room than there can ever be. Other requests get their own load. */
function refuseDemanding(step: Step, engine: EngineState, plan: Plan, error: CorralError): void {
  if (plan.reload) {
    undoReload(step, engine, plan.reload, error)
    return
  }
  refuse(step, engine, getDemandingRequests(engine, plan), error)
  dropPlan(step, engine)
  if (engine.queue.length) planLoad(step, engine)
}

/** Among requests that wait together for too large a load, returns those that need its size. */
function getDemandingRequests(engine: EngineState, plan: Plan): QueuedRequest[] {
  const { defaults } = engine
  const queue = [...engine.queue]
  const enough = (requests: readonly QueuedRequest[]) =>
    satisfies(firstLoad(defaults, getOptions(requests)), plan.options)
  const alone = queue.filter(request => enough([request]))
  if (alone.length) return alone
  // The remaining requests now need less than was planned.
  if (!enough(queue)) return []
  const raiser = queue.findLast(
    (request, at) => !satisfies(firstLoad(defaults, getOptions(queue.slice(0, at))), request.options)
  )
  return raiser ? [raiser] : queue
}

/** (19) Refuses requests that have waited longer than `room_timeout`. Returns whether nobody waits for the plan now. */
function refuseTimedOut(step: Step, engine: EngineState, plan: PreparedPlan): boolean {
  const late: QueuedRequest[] = []
  for (const request of waitingFor(engine, plan)) {
    if (step.now < getDeadline(step.state, plan, request)) break
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
 * Returns the clients' requests that wait for the room of a plan, in order of arrival and therefore of their deadlines.
 * Only the requester waits for the room of a reload. The others wait for the engine.
 */
function waitingFor({ queue }: EngineState, { reload }: Plan): Iterable<QueuedRequest> {
  if (!reload) return queue.clients
  const requester = queue.get(reload.requester)
  return requester && !requester.background ? [requester] : []
}

function getDeadline({ limits }: SchedulerState, { since }: Plan, { arrivedAt }: QueuedRequest): number {
  return Math.max(arrivedAt, since) + limits.roomTimeout
}

function nextDeadline({ state, now }: Step, engine: EngineState, plan: Plan): number {
  for (const request of waitingFor(engine, plan)) {
    const deadline = getDeadline(state, plan, request)
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
  if (isIn(engine, 'draining') && plan.reload) times.push(getDrainDeadline(step.state, plan.reload))
  setAlarm(step, engine, Math.min(...times.filter(at => at > step.now)))
  reportWaiting(step, engine, holders)
  if (!isIn(engine, 'planned') || plan.reload) return
  if (isEnoughForNew(engine, plan)) return
  const options = firstLoad(plan.options, [{}, ...getOptions(decidingRequests(engine))])
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
