import type { Scheduler } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import type { Progress } from '../contracts/progress.ts'
import type { CorralError } from '../errors.ts'

/** Where a model is between disk and memory. */
export interface LoadState {
  value: 'unloaded' | 'loading' | 'loaded'
  /** While it is loaded into memory, where it is known. */
  progress?: Progress
  /** Why it could not be loaded the last time; only of one that is unloaded. */
  failure?: CorralError
}

/** Gives the states of models at this moment; one that is used in several ways is loaded where it is in any of them. */
export function loadStates(
  scheduler: Pick<Scheduler, 'running' | 'loading' | 'loadFailure'>
): (variant: Model) => LoadState {
  const running = new Set(scheduler.running().map(({ variant }) => variant.key))
  const loading = new Map(scheduler.loading().map(one => [one.variant.key, one] as const))
  return variant => {
    if (running.has(variant.key)) return { value: 'loaded' }
    const moving = loading.get(variant.key)
    // Until its engine has ended it is in memory.
    if (moving) {
      const isLeaving = moving.state === 'draining' || moving.state === 'stopping'
      return isLeaving
        ? { value: 'loaded' }
        : { value: 'loading', ...(moving.progress && { progress: moving.progress }) }
    }
    const failure = scheduler.loadFailure(variant)
    return { value: 'unloaded', ...(failure && { failure }) }
  }
}
