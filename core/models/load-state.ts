import type { Scheduler } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import type { Progress } from '../contracts/progress.ts'
import type { CorralError } from '../errors.ts'

export interface LoadState {
  value: 'unloaded' | 'loading' | 'loaded'
  /** Set while it is being loaded, if known. */
  progress?: Progress
  /** Why the last load failed; only for an unloaded model. */
  failure?: CorralError
}

/** Returns a function for the current states of models. A model that is loaded in one of its modes counts as loaded. */
export function loadStates(scheduler: Pick<Scheduler, 'running' | 'loading' | 'loadFailure'>) {
  const running = new Set(scheduler.running().map(({ variant }) => variant.key))
  const loading = new Map(scheduler.loading().map(one => [one.variant.key, one] as const))
  return (variant: Model): LoadState => {
    if (running.has(variant.key)) return { value: 'loaded' }
    const moving = loading.get(variant.key)
    // It is in memory until its engine has ended.
    if (moving?.state === 'draining' || moving?.state === 'stopping') return { value: 'loaded' }
    if (moving) return { value: 'loading', ...(moving.progress && { progress: moving.progress }) }
    const failure = scheduler.loadFailure(variant)
    return { value: 'unloaded', ...(failure && { failure }) }
  }
}
