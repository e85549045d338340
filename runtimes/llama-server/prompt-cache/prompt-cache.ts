import type { LlamaServerEngine } from '../engine.ts'
import type { LaunchSpec } from '../launch-spec.ts'

/** The caches of engines' slots on disk: a conversation goes on after its model was unloaded without being read again. */
export interface PromptCache {
  /** Folder for `LaunchSpec.slotFolder`; undefined where this engine's caches cannot be saved. Never rejects. */
  folderFor(spec: LaunchSpec): Promise<string | undefined>
  /** Gives an engine that has just started what was saved of its like, before it serves. Never rejects; is bounded. */
  restore(engine: LlamaServerEngine, signal: AbortSignal): Promise<void>
  /** Saves the caches of an engine that is about to be stopped and answers nothing. Never rejects; is bounded. */
  save(engine: LlamaServerEngine): Promise<void>
  /** Deletes all that was saved of a variant (`StoredVariant.key`), as when it is removed. Never rejects. */
  forget(variantKey: string): Promise<void>
}
