import type { EngineMode, MemoryUse } from './engines.ts'

/** What a model in one mode does and waits for now; of models that are loaded, wanted or blocked. */
export interface EngineStats {
  /** Public name of the model. */
  readonly model: string
  readonly mode: EngineMode
  readonly isLoaded: boolean
  /** Requests that it answers at once; 0 where it is not loaded. */
  readonly slots: number
  readonly freeSlots: number
  /** Requests that are answered … */
  readonly running: number
  /** … and that wait. */
  readonly waiting: number
  /** Milliseconds that the oldest of those has waited. */
  readonly longestWait: number
  /** Whether its loads failed repeatedly, so that requests are refused for a while. */
  readonly isBlocked: boolean
  /** Bytes that are kept for it of each memory pool. */
  readonly reserved: MemoryUse
}

export interface SchedulerStats {
  readonly engines: readonly EngineStats[]
  /** Requests so far, those for loads included. */
  readonly requests: number
  /** Most models in memory at once. */
  readonly maxLoaded: number
  /** Bytes by pool: what all engines together hold, and may hold. A pool without a budget has no limit. */
  readonly memory: { readonly reserved: MemoryUse; readonly budget: MemoryUse }
}
