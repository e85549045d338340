import type { UnloadReason } from '../../../core/contracts/hooks.ts'
import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { countLoad } from './fair-share.ts'
import type { QueuedRequest } from './request-queue.ts'
import {
  decidingRequests,
  type Effect,
  type EngineInPhase,
  type EngineState,
  firstLoad,
  getPlan,
  isIn,
  type Loaded,
  type Phase,
  type Plan,
  type PreparedPlan,
  reservedBy,
  type SchedulerState
} from './scheduler-state.ts'

export interface Step {
  state: SchedulerState
  now: number
  effects: Effect[]
}

export function noteUse(phase: Loaded, { background }: QueuedRequest, now: number): void {
  if (background) phase.backgroundUsed = now
  else phase.lastUsed = now
}

/** Revokes background requests, newest first, until `slots` slots are free. */
export function displace(step: Step, engine: EngineInPhase<'ready' | 'draining'>, slots: number): void {
  const { phase, maxConcurrent = Number.POSITIVE_INFINITY } = engine
  const { running } = phase
  let free = phase.slots
  for (const taken of running.values()) free -= taken.slots
  const isEnough = () => free >= slots && running.size < maxConcurrent
  if (isEnough()) return
  for (const [id, taken] of [...running].reverse()) {
    if (isEnough()) return
    if (!taken.request.background) continue
    running.delete(id)
    free += taken.slots
    phase.backgroundUsed = step.now
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

export function become(engine: EngineState, phase: Phase): void {
  engine.phase = phase
}

export function newPlan(options: LoadOptions, chosenBy: string): Plan {
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

/** Plans a load, now or after the old engine has stopped, by default with the options of all waiting requests. */
export function planLoad(
  step: Step,
  engine: EngineState,
  options: LoadOptions = firstLoad(engine.defaults, getOptions(decidingRequests(engine))),
  chosenBy: string = decidingRequests(engine).first?.clientId ?? ''
): void {
  const plan = newPlan(options, chosenBy)
  if (isIn(engine, 'stopping')) engine.phase.plan = plan
  else {
    become(engine, { name: 'planned', plan })
    prepare(step, engine)
  }
}

/** Has the plan estimated, unless that was done or an earlier estimate is still running. */
export function prepare({ state, effects }: Step, engine: EngineState): void {
  const plan = getPlan(engine)
  if (!plan || plan.run !== undefined || engine.preparing !== undefined) return
  plan.run = ++state.runs
  engine.preparing = plan.run
  effects.push({ type: 'prepare', key: engine.key, run: plan.run, options: plan.options })
}

export function isBeingPrepared({ preparing }: EngineState, { run }: Plan): boolean {
  return run !== undefined && run === preparing
}

/** Cancels a load that has not begun. An engine that drained for it is ready again. */
export function dropPlan(step: Step, engine: EngineState): void {
  const { phase } = engine
  const plan = getPlan(engine)
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

export function load(step: Step, engine: EngineState, plan: PreparedPlan): void {
  const run = ++step.state.runs
  const requester = plan.reload && engine.queue.get(plan.reload.requester)
  const first = requester ?? decidingRequests(engine).first
  if (first && !first.background) countLoad(step.state, first.clientId, step.now)
  become(engine, { name: 'loading', run, plan })
  setAlarm(step, engine, undefined)
  reportWaiting(step, engine, [])
  step.effects.push({ type: 'load', key: engine.key, run, options: plan.options })
}

export function abortLoad(step: Step, engine: EngineInPhase<'loading'>): void {
  setAlarm(step, engine, undefined)
  stopping(engine, undefined)
  step.effects.push({ type: 'abort-load', key: engine.key })
}

/** @param save whether the slots' prompt caches may be saved */
export function unload(
  step: Step,
  engine: EngineInPhase<'ready' | 'draining'>,
  reason: UnloadReason,
  save = true
): void {
  displace(step, engine, Number.POSITIVE_INFINITY)
  stopping(engine, getPlan(engine))
  setAlarm(step, engine, undefined)
  step.effects.push({ type: 'unload', key: engine.key, save, reason })
}

export function stopping(engine: EngineInPhase<'loading' | 'ready' | 'draining'>, plan: Plan | undefined): void {
  become(engine, { name: 'stopping', run: engine.phase.run, reserved: reservedBy(engine), plan })
}

export function refuse(step: Step, engine: EngineState, requests: Iterable<QueuedRequest>, error: CorralError): void {
  for (const request of requests) {
    engine.queue.remove(request)
    step.effects.push({ type: 'refuse', id: request.id, error })
  }
}

export function revokeAll(step: Step, { phase }: EngineState, error: CorralError): void {
  if (!('running' in phase)) return
  for (const id of phase.running.keys()) step.effects.push({ type: 'revoke', id, error })
  phase.running.clear()
}

export function setAlarm(step: Step, engine: EngineState, at: number | undefined): void {
  const finite = at !== undefined && Number.isFinite(at) ? at : undefined
  if (engine.alarm === finite) return
  engine.alarm = finite
  step.effects.push({ type: 'alarm', key: engine.key, at: finite })
}

/** Returns `at` if it is still to come. */
export function ifLater({ now }: Step, at: number): number | undefined {
  return at > now ? at : undefined
}

/** Reports which models occupy the room that this one waits for, if that has changed. */
export function reportWaiting(step: Step, engine: EngineState, holders: readonly { key: string }[]): void {
  const keys = holders.map(holder => holder.key)
  if (keys.length === engine.waitsFor.length && keys.every(key => engine.waitsFor.includes(key))) return
  engine.waitsFor = keys
  step.effects.push({ type: 'waiting', key: engine.key, holders: keys })
}

export function getOptions(requests: Iterable<QueuedRequest>): Partial<LoadOptions>[] {
  return Array.from(requests, request => request.options)
}
