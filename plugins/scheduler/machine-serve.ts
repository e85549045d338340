import type { CorralError } from '../../core/errors.ts'
import { satisfies, union } from './load-options.ts'
import { dropPlan, newPlan, prepare, refuse, setAlarm, unload } from './machine-actions.ts'
import type { Effect, EngineState, SchedulerState } from './machine-state.ts'

/**
 * Hands out slots in order of arrival; the first request that the engine cannot satisfy begins a drain. An engine that
 * has to give way to another model begins no answers.
 */
export function serve(state: SchedulerState, engine: EngineState, now: number, effects: Effect[]): void {
  const options = engine.options!
  for (const waiter of engine.queue.filter(waiter => waiter.loadOnly && satisfies(options, waiter.asked))) {
    engine.queue.splice(engine.queue.indexOf(waiter), 1)
    engine.lastUsed = now
    effects.push({ type: 'grant', id: waiter.id, key: engine.key })
  }
  const most = engine.maxConcurrent ?? Number.POSITIVE_INFINITY
  let free = options.num_parallel
  for (const slots of engine.running.values()) free -= slots
  while (engine.queue.length && !givesWay(engine, now)) {
    const head = engine.queue[0]!
    if (!satisfies(options, head.asked)) {
      engine.phase = 'draining'
      engine.plan = newPlan(union(options, head.asked))
      engine.reload = { previous: options, asker: head.id }
      setAlarm(engine, undefined, effects)
      prepare(state, engine, effects)
      return
    }
    // Who takes several slots needs them at once, and would never have them if those behind it took what is free.
    const slots = Math.min(head.slots, options.num_parallel)
    if (engine.running.size >= most || slots > free) break
    free -= slots
    engine.queue.shift()
    engine.running.set(head.id, slots)
    engine.grants++
    engine.lastUsed = now
    effects.push({ type: 'grant', id: head.id, key: engine.key })
  }
  const expires = engine.lastUsed + engine.keepAlive
  if (engine.running.size || engine.queue.length) setAlarm(engine, undefined, effects)
  else if (state.closing || now >= expires) unload(engine, true, effects)
  else setAlarm(engine, expires, effects)
}

function givesWay({ giveWay, grants }: EngineState, now: number): boolean {
  return giveWay !== undefined && (now >= giveWay.at || grants >= giveWay.grants)
}

/**
 * Gives up a reload, telling its asker if there is an error to tell: what runs goes on, or what ran is loaded again for
 * the others.
 */
export function undoReload(
  state: SchedulerState,
  engine: EngineState,
  error: CorralError | undefined,
  now: number,
  effects: Effect[]
): void {
  const { previous, asker } = engine.reload!
  if (error && engine.queue.some(waiter => waiter.id === asker)) refuse(engine, [asker], error, effects)
  dropPlan(engine, effects)
  if (engine.phase === 'draining') {
    engine.phase = 'ready'
    serve(state, engine, now, effects)
  } else if (engine.queue.length) {
    engine.plan = newPlan(previous)
    if (engine.phase === 'absent') prepare(state, engine, effects)
  }
}
