import type { Engine, EngineExit, EngineMode, MemoryEstimate } from '../../../core/contracts/engines.ts'
import type { UnloadReason } from '../../../core/contracts/hooks.ts'
import type { LoadingModel, RunningModel } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { type EngineState, isIn, onlyIdleWait } from './scheduler-state.ts'
import { expiryOf } from './turns.ts'

/** What a load does before there is a GGUF to load. */
const CONVERTING: ReadonlySet<Progress['phase']> = new Set(['installing', 'converting', 'quantizing'])

/** One model in one mode with its process, timers and files: what `EngineState` is decided about. */
export interface EngineRecord {
  key: string
  variant: Model
  mode: EngineMode
  engine?: Engine | undefined
  /** Settles when the engine has ended; never rejects. */
  exited?: Promise<EngineExit> | undefined
  /** Lets the engine count as ended. */
  end?: ((exit: EngineExit) => void) | undefined
  preparing?: AbortController | undefined
  loading?: AbortController | undefined
  /** What the configuration said of it, by `basisOf`, when it was last loaded or prepared. */
  basis?: string
  /** It was last loaded with the settings of a trial. */
  isTrial?: boolean
  /** Milliseconds of `keep_alive` in its own section. */
  keepAlive?: number | undefined
  /** What the next load takes, once it is prepared. */
  estimate?: MemoryEstimate | undefined
  /** Why its engine is being unloaded. */
  leaving?: UnloadReason | undefined
  progress?: Progress | undefined
  alarm?: NodeJS.Timeout | undefined
  /** When the present engine became ready, in milliseconds of `performance.now()`. */
  loadedAt: number
  /** Called when nothing of it is left. */
  goneListeners: (() => void)[]
}

/** Whether it has an engine, loads one or prepares a load. */
export function isOccupied({ engine, loading, preparing }: EngineRecord): boolean {
  return engine !== undefined || loading !== undefined || preparing !== undefined
}

/** Settles when no engine, load or preparation of these is left. */
export async function whenGone(engines: readonly EngineRecord[]): Promise<void> {
  await Promise.all(
    engines.filter(isOccupied).map(({ goneListeners }) => new Promise<void>(resolve => goneListeners.push(resolve)))
  )
}

/** To be called after the end of an engine, a load or a preparation: settles `whenGone`. */
export function settleGone(managed: EngineRecord): void {
  if (isOccupied(managed)) return
  for (const listener of managed.goneListeners.splice(0)) listener()
}

/** As `/api/ps` lists it once its engine is ready; else nothing. */
export function runningModel(managed: EngineRecord, engine: EngineState | undefined): RunningModel[] {
  if (!managed.engine || !engine || !isIn(engine, 'ready')) return []
  const { options, running } = engine.phase
  const idleFor = running.size ? performance.now() - engine.phase.lastUsed : 0
  const expires = expiryOf(engine) + idleFor
  return [
    {
      variant: managed.variant,
      mode: managed.mode,
      engine: managed.engine,
      reserved: engine.phase.reserved,
      options,
      expiresAt: Number.isFinite(expires) ? dateAt(expires) : undefined,
      running: running.size,
      queued: engine.queue.length
    }
  ]
}

/** As `/api/ps` lists it while its engine is not ready; else nothing. */
export function loadingModel(managed: EngineRecord, engine: EngineState | undefined): LoadingModel[] {
  if (!engine || isIn(engine, 'ready')) return []
  if (isIn(engine, 'absent') && !engine.queue.length) return []
  return [
    {
      variant: managed.variant,
      mode: managed.mode,
      state: stateOf(managed, engine),
      progress: managed.progress,
      // What takes only what is idle may wait for as long as it likes.
      queued: engine.queue.clients.length
    }
  ]
}

function stateOf({ progress }: EngineRecord, engine: EngineState): LoadingModel['state'] {
  const { phase, waitsFor } = engine
  if (phase.name === 'draining' || phase.name === 'stopping') return phase.name
  if (waitsFor.length) return 'waiting'
  if (progress !== undefined && CONVERTING.has(progress.phase)) return 'converting'
  // What only takes what is idle may find that there is no room.
  const isCertain = phase.name === 'loading' || (phase.name === 'planned' && !onlyIdleWait(engine))
  return isCertain ? 'loading' : 'queued'
}

/** What makes an engine that a provider has started unusable, as the end of a sentence. @param ids of other engines */
export function engineFault({ id, slots }: Engine, ids: readonly string[]): string | undefined {
  if (id !== undefined && ids.includes(id)) return `whose id "${id}" another engine has`
  return slots === undefined || (Number.isSafeInteger(slots) && slots > 0) ? undefined : `with ${slots} slots`
}
