import type { EngineMode, MemoryUse } from './engines.ts'

/** The state of a model in one mode, for models that are loaded, requested or blocked. */
export interface EngineStats {
  /** Public name of the model. */
  readonly model: string
  readonly mode: EngineMode
  readonly isLoaded: boolean
  /** Maximum concurrent requests; 0 if it is not loaded. */
  readonly slots: number
  readonly freeSlots: number
  /** Requests in progress. */
  readonly running: number
  /** Queued requests. */
  readonly waiting: number
  /** Milliseconds that the oldest queued request has waited. */
  readonly longestWait: number
  /** Whether its loads failed repeatedly, so that requests are refused for a while. */
  readonly isBlocked: boolean
  /** Bytes reserved for it in each memory pool. */
  readonly reserved: MemoryUse
}

export interface SchedulerStats {
  readonly engines: readonly EngineStats[]
  /** Requests so far, including loads. */
  readonly requests: number
  /** Maximum number of models in memory. */
  readonly maxLoaded: number
  /** Bytes by pool: what all engines together use, and may use. A pool without a budget has no limit. */
  readonly memory: { readonly reserved: MemoryUse; readonly budget: MemoryUse }
}
