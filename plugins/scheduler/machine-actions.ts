import type { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/options.ts'
import type { Effect, EngineState, Plan, SchedulerState } from './machine-state.ts'

/*
 * The steps that decisions are made of: each changes the state and adds the effects that follow from it.
 */

export function newPlan(options: LoadOptions): Plan {
  return {
    options,
    run: undefined,
    need: undefined,
    certain: false,
    advice: '',
    since: Number.POSITIVE_INFINITY,
    claims: new Map(),
    alone: false
  }
}

/** Asks what the plan takes, unless that is known, asked already, or an answer to an earlier plan is still to come. */
export function prepare(state: SchedulerState, engine: EngineState, effects: Effect[]): void {
  const { plan } = engine
  if (!plan || plan.run !== undefined || engine.preparing !== undefined) return
  plan.run = ++state.runs
  engine.preparing = plan.run
  effects.push({ type: 'prepare', key: engine.key, run: plan.run, options: plan.options })
}

export function dropPlan(engine: EngineState, effects: Effect[]): void {
  if (engine.preparing !== undefined && engine.plan?.run === engine.preparing) {
    effects.push({ type: 'abort-prepare', key: engine.key })
  }
  engine.plan = undefined
  engine.reload = undefined
  setAlarm(engine, undefined, effects)
  waitFor(engine, [], effects)
}

export function load(state: SchedulerState, engine: EngineState, plan: Plan, effects: Effect[]): void {
  engine.phase = 'loading'
  engine.options = plan.options
  engine.reserved = plan.need!
  engine.certain = plan.certain && !plan.alone
  engine.run = ++state.runs
  setAlarm(engine, undefined, effects)
  waitFor(engine, [], effects)
  effects.push({ type: 'load', key: engine.key, run: engine.run, options: plan.options })
}

export function abortLoad(engine: EngineState, effects: Effect[]): void {
  engine.phase = 'stopping'
  engine.plan = undefined
  engine.reload = undefined
  effects.push({ type: 'abort-load', key: engine.key })
}

export function unload(engine: EngineState, save: boolean, effects: Effect[]): void {
  engine.phase = 'stopping'
  setAlarm(engine, undefined, effects)
  effects.push({ type: 'unload', key: engine.key, save })
}

export function refuse(engine: EngineState, ids: readonly number[], error: CorralError, effects: Effect[]): void {
  engine.queue = engine.queue.filter(waiter => !ids.includes(waiter.id))
  for (const id of ids) effects.push({ type: 'refuse', id, error })
}

export function refuseAll(engine: EngineState, error: CorralError, effects: Effect[]): void {
  refuse(
    engine,
    engine.queue.map(waiter => waiter.id),
    error,
    effects
  )
}

export function revokeAll(engine: EngineState, error: CorralError, effects: Effect[]): void {
  for (const id of engine.running.keys()) effects.push({ type: 'revoke', id, error })
  engine.running.clear()
}

export function setAlarm(engine: EngineState, at: number | undefined, effects: Effect[]): void {
  const finite = at !== undefined && Number.isFinite(at) ? at : undefined
  if (engine.alarm === finite) return
  engine.alarm = finite
  effects.push({ type: 'alarm', key: engine.key, at: finite })
}

/** Notes whose room this model waits for, and tells it where that has changed. */
export function waitFor(engine: EngineState, holders: readonly string[], effects: Effect[]): void {
  if (holders.length === engine.waitsFor.length && holders.every(key => engine.waitsFor.includes(key))) return
  engine.waitsFor = [...holders]
  effects.push({ type: 'waiting', key: engine.key, holders: engine.waitsFor })
}
