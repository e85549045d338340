import type { Progress } from '../../core/progress.ts'
import type { Engine, EngineMode, LoadingModel, RunningModel, StoredVariant } from '../../core/services.ts'
import type { EngineState } from './machine-state.ts'

/** What a load does before there is a GGUF to load. */
const CONVERTING: ReadonlySet<Progress['phase']> = new Set(['installing', 'converting', 'quantizing'])

/** What belongs to one engine key beside the machine's state. */
export interface Slot {
  key: string
  variant: StoredVariant
  mode: EngineMode
  engine: Engine | undefined
  loading: AbortController | undefined
  progress: Progress | undefined
  alarm: NodeJS.Timeout | undefined
  releaseFiles: (() => void) | undefined
  /** Milliseconds since the epoch; when the present engine became ready. */
  loadedAt: number
  /** Called when the engine has gone. */
  goneListeners: (() => void)[]
}

export function createSlot(key: string, variant: StoredVariant, mode: EngineMode): Slot {
  return {
    key,
    variant,
    mode,
    engine: undefined,
    loading: undefined,
    progress: undefined,
    alarm: undefined,
    releaseFiles: undefined,
    loadedAt: 0,
    goneListeners: []
  }
}

/** What follows the end of an engine or of a load: its files are free, and who waited for the end is told. */
export function settleGone(slot: Slot): void {
  slot.releaseFiles?.()
  slot.releaseFiles = undefined
  for (const listener of slot.goneListeners.splice(0)) listener()
}

/** The slot as `/api/ps` lists it once its engine is ready; else nothing. */
export function runningModel(slot: Slot, engine: EngineState | undefined): RunningModel[] {
  if (!slot.engine || engine?.phase !== 'ready') return []
  const expires = (engine.running.size ? Date.now() : engine.lastUsed) + engine.keepAlive
  return [
    {
      variant: slot.variant,
      mode: slot.mode,
      engine: slot.engine,
      options: engine.options!,
      expiresAt: Number.isFinite(expires) ? new Date(expires) : undefined,
      running: engine.running.size,
      queued: engine.queue.length
    }
  ]
}

/** The slot as `/api/ps` lists it while its engine is not ready; else nothing. */
export function loadingModel(slot: Slot, engine: EngineState | undefined): LoadingModel[] {
  if (!engine || engine.phase === 'ready') return []
  if (engine.phase === 'absent' && !engine.queue.length) return []
  const converts = slot.progress !== undefined && CONVERTING.has(slot.progress.phase)
  const phase =
    engine.phase === 'absent' ? 'queued' : engine.phase === 'loading' && converts ? 'converting' : engine.phase
  return [
    { variant: slot.variant, mode: slot.mode, state: phase, progress: slot.progress, queued: engine.queue.length }
  ]
}
