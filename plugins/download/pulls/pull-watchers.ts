import type { OnPullEvent } from '../../../core/contracts/downloads.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import type { PullProgress } from './pull-progress.ts'

/** How a pull ended for those who watch it. */
export type Outcome = { stored: StoredVariant } | { error: unknown }

/** Those who wait for one pull. */
export class PullWatchers {
  readonly #settlers = new Set<(outcome: Outcome) => void>()

  get size(): number {
    return this.#settlers.size
  }

  /** Waits until `settle`, hearing of progress meanwhile; or until the signal is aborted, when `onLeave` is called. */
  add(progress: PullProgress, onEvent: OnPullEvent, signal: AbortSignal, onLeave: () => void): Promise<StoredVariant> {
    return new Promise((resolve, reject) => {
      const stopListening = progress.listen(onEvent)
      const settle = (outcome: Outcome) => {
        stopListening()
        signal.removeEventListener('abort', leave)
        this.#settlers.delete(settle)
        if ('stored' in outcome) resolve(outcome.stored)
        else reject(outcome.error)
      }
      const leave = () => {
        settle({ error: signal.reason })
        onLeave()
      }
      signal.addEventListener('abort', leave)
      this.#settlers.add(settle)
    })
  }

  /** Ends the waiting of all. */
  settle(outcome: Outcome): void {
    for (const settle of [...this.#settlers]) settle(outcome)
  }
}
