import type { Engine, EngineMode, MemoryEstimate } from '../../core/contracts/engines.ts'
import type { Progress } from '../../core/contracts/progress.ts'
import type { LoadingModel, RunningModel } from '../../core/contracts/scheduler.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { type EngineState, isIn } from './scheduler-state.ts'

/** What a load does before there is a GGUF to load. */
const CONVERTING: ReadonlySet<Progress['phase']> = new Set(['installing', 'converting', 'quantizing'])

/** What belongs to one engine key beside the machine's state. */
export interface Slot {
  key: string
  variant: StoredVariant
  mode: EngineMode
  engine: Engine | undefined
  preparing: AbortController | undefined
  loading: AbortController | undefined
  /** What the next load takes, from when it is prepared. */
  estimate: MemoryEstimate | undefined
  progress: Progress | undefined
  alarm: NodeJS.Timeout | undefined
  /** Milliseconds since the epoch; when the present engine became ready. */
  loadedAt: number
  /** Called when nothing of it is left. */
  goneListeners: (() => void)[]
}

export function createSlot(key: string, variant: StoredVariant, mode: EngineMode): Slot {
  return {
    key,
    variant,
    mode,
    engine: undefined,
    preparing: undefined,
    loading: undefined,
    estimate: undefined,
    progress: undefined,
    alarm: undefined,
    loadedAt: 0,
    goneListeners: []
  }
}

/** Whether it has an engine, loads one or prepares a load. */
export function isOccupied({ engine, loading, preparing }: Slot): boolean {
  return engine !== undefined || loading !== undefined || preparing !== undefined
}

/** What follows the end of an engine, a load or a preparation: those who waited for it go on. */
export function settleGone(slot: Slot): void {
  if (isOccupied(slot)) return
  for (const listener of slot.goneListeners.splice(0)) listener()
}

/** The slot as `/api/ps` lists it once its engine is ready; else nothing. */
export function runningModel(slot: Slot, engine: EngineState | undefined): RunningModel[] {
  if (!slot.engine || !engine || !isIn(engine, 'ready')) return []
  const { options, running, lastUsed } = engine.phase
  const expires = (running.size ? Date.now() : lastUsed) + engine.keepAlive
  return [
    {
      variant: slot.variant,
      mode: slot.mode,
      engine: slot.engine,
      options,
      expiresAt: Number.isFinite(expires) ? new Date(expires) : undefined,
      running: running.size,
      queued: engine.queue.length
    }
  ]
}

/** The slot as `/api/ps` lists it while its engine is not ready; else nothing. */
export function loadingModel(slot: Slot, engine: EngineState | undefined): LoadingModel[] {
  if (!engine || isIn(engine, 'ready')) return []
  if (isIn(engine, 'absent') && !engine.queue.length) return []
  return [
    {
      variant: slot.variant,
      mode: slot.mode,
      state: stateOf(slot, engine),
      progress: slot.progress,
      queued: engine.queue.length
    }
  ]
}

function stateOf({ progress }: Slot, { phase, waitsFor }: EngineState): LoadingModel['state'] {
  if (phase.name === 'draining' || phase.name === 'stopping') return phase.name
  if (waitsFor.length) return 'waiting'
  if (progress !== undefined && CONVERTING.has(progress.phase)) return 'converting'
  return phase.name === 'absent' ? 'queued' : 'loading'
}
