import type { MemoryUse } from '../../../core/contracts/builds.ts'
import type { Engine, EngineBounds, EngineSpec } from '../../../core/contracts/engines.ts'

/** What an engine will take, before it is started. */
export interface MemoryNeed {
  /** Bytes by pool: `host`, or the id of a device of the build. */
  use: MemoryUse
  /** What tells it: an earlier engine's own report, llama-fit-params, or the file's metadata (a careful guess). */
  from: 'learned' | 'fit' | 'metadata'
  /** Bytes in all pools together, for messages. */
  parts: { weights: number; cache: number; compute: number }
  /** What the engine has to be started with (`EngineSpec.bounds`), so that it keeps to this. */
  bounds: EngineBounds
}

/** What is known about memory: what models need, and how much there is. */
export interface MemoryBook {
  /** What an engine would take. Rejects only with the signal's reason. */
  estimate(spec: EngineSpec, signal: AbortSignal): Promise<MemoryNeed>
  /**
   * Bytes that all engines together may take in each pool now: what is configured, else what the machine has less a
   * reserve; and never more than is free now plus `held`, what corral's engines hold by their own account.
   */
  budget(held: MemoryUse): Promise<MemoryUse>
  /**
   * Remembers what an engine really takes, also for later starts of corral, and tells what it is to be counted with:
   * what it reports, what it does not report (its process, a driver's part), and what it may still grow to.
   */
  learn(engine: Engine): MemoryUse
  /** Remembers that this need was too small: the next estimate for the like of it is larger. */
  learnOutOfMemory(spec: EngineSpec, need: MemoryNeed): void
  /** A sentence with the numbers and what would help (a smaller context, a q8_0 cache, fewer slots, a smaller variant). */
  explain(spec: EngineSpec, need: MemoryNeed, budget: MemoryUse): string
}
