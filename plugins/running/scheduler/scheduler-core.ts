import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import type { Engine, EngineExit, EngineMode, MemoryEstimate } from '../../../core/contracts/engines.ts'
import type { Hooks, UnloadReason } from '../../../core/contracts/hooks.ts'
import type { LoadingModel, RunningModel } from '../../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { OnProgress, Progress } from '../../../core/contracts/progress.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import type { CorralError } from '../../../core/errors.ts'
import { dateAt } from '../../../core/system/clock.ts'
import type { OpenMap } from '../../../core/system/open-tables.ts'
import type { EngineRegistry } from './engine-registry.ts'
import { getExpiry } from './fair-share.ts'
import type { HostMemory } from './host-memory.ts'
import type { ModelConfiguration } from './model-configuration.ts'
import {
  type EngineState,
  type Event,
  isIn,
  type Limits,
  onlyBackgroundWaits,
  type SchedulerState
} from './scheduler-state.ts'

/** Progress phases before there is a GGUF file to load. */
const CONVERTING: ReadonlySet<Progress['phase']> = new Set(['installing', 'converting', 'quantizing'])

/** One model in one mode with its process, timers and files. Decisions are made about its `EngineState`. */
export interface EngineRecord {
  key: string
  variant: Model
  mode: EngineMode
  engine?: Engine | undefined
  /** Settles when the engine has ended. Never rejects. */
  exited?: Promise<EngineExit> | undefined
  markEnded?: ((exit: EngineExit) => void) | undefined
  /** Aborts the preparation or load in progress. There is never more than one of them. */
  work?: AbortController | undefined
  /** Settings and default options of its last load or preparation. A difference means that it must be reloaded. */
  basis?: string
  isTrial?: boolean
  /** Memory that the next load needs, once it is prepared. */
  estimate?: MemoryEstimate | undefined
  unloadReason?: UnloadReason | undefined
  progress?: Progress | undefined
  alarmTimer?: NodeJS.Timeout | undefined
  /** When the current engine became ready, in milliseconds of `performance.now()`. */
  loadedAt: number
  /** Called when no engine, load or preparation is left. */
  goneListeners: (() => void)[]
}

/** A request that waits or is being answered. */
export interface PendingRequest {
  record: EngineRecord
  onProgress: OnProgress | undefined
  grant: (engine: Engine) => void
  refuse: (error: unknown) => void
  revoke: (error: CorralError) => void
}

export interface SchedulerDependencies {
  storage: Pick<Storage, 'onRemove' | 'requireTrusted'>
  catalog: Catalog
  engines: EngineRegistry
  hostMemory: Pick<HostMemory, 'add' | 'budget'>
  config: CoreConfig
  hooks: Pick<Hooks, 'modelLoaded' | 'modelUnloaded' | 'loadFailed' | 'stateChanged'>
  log: FastifyBaseLogger
  limits: Limits
}

/** State and functions that the parts of the scheduler share. Only `decide` changes `state`. */
export interface SchedulerCore extends SchedulerDependencies {
  models: ModelConfiguration
  state: SchedulerState
  records: Map<string, EngineRecord>
  requests: OpenMap<number, PendingRequest>
  getRecord(variant: Model, mode: EngineMode): EngineRecord
  dispatch(event: Event): void
  report(record: EngineRecord, progress: Progress): void
}

export function isOccupied({ engine, work }: EngineRecord): boolean {
  return engine !== undefined || work !== undefined
}

/** Settles when none of these has an engine, a load or a preparation left. */
export async function whenGone(engines: readonly EngineRecord[]): Promise<void> {
  await Promise.all(
    engines.filter(isOccupied).map(({ goneListeners }) => new Promise<void>(resolve => goneListeners.push(resolve)))
  )
}

/** Settles `whenGone`. Call it after an engine, a load or a preparation has ended. */
export function settleGone(record: EngineRecord): void {
  if (isOccupied(record)) return
  for (const listener of record.goneListeners.splice(0)) listener()
}

/** Returns the entry of `/api/ps` for an engine that is ready. */
export function runningModel(record: EngineRecord, engine: EngineState | undefined): RunningModel[] {
  if (!record.engine || !engine || !isIn(engine, 'ready')) return []
  const { options, running } = engine.phase
  const idleFor = running.size ? performance.now() - engine.phase.lastUsed : 0
  const expires = getExpiry(engine) + idleFor
  return [
    {
      variant: record.variant,
      mode: record.mode,
      engine: record.engine,
      reserved: engine.phase.reserved,
      options,
      expiresAt: Number.isFinite(expires) ? dateAt(expires) : undefined,
      running: running.size,
      queued: engine.queue.length
    }
  ]
}

export function loadingModel(record: EngineRecord, engine: EngineState | undefined): LoadingModel[] {
  if (!engine || isIn(engine, 'ready')) return []
  if (isIn(engine, 'absent') && !engine.queue.length) return []
  return [
    {
      variant: record.variant,
      mode: record.mode,
      state: getLoadingState(record, engine),
      progress: record.progress,
      // Background requests may wait for any time.
      queued: engine.queue.clients.length
    }
  ]
}

/** The key of an engine's record and state. */
export const engineKey = ({ key }: Model, mode: EngineMode): string => `${key}#${mode}`

function getLoadingState({ progress }: EngineRecord, engine: EngineState): LoadingModel['state'] {
  const { phase, waitsFor } = engine
  if (phase.name === 'draining' || phase.name === 'stopping') return phase.name
  if (waitsFor.length) return 'waiting'
  if (progress !== undefined && CONVERTING.has(progress.phase)) return 'converting'
  // Background requests may not find room.
  const isCertain = phase.name === 'loading' || (phase.name === 'planned' && !onlyBackgroundWaits(engine))
  return isCertain ? 'loading' : 'queued'
}

/** Returns why an engine from a provider is unusable, as the end of a sentence. @param ids of other engines */
export function engineFault(engine: Engine | undefined, ids: readonly string[]): string | undefined {
  if (typeof engine?.exited?.then !== 'function') return 'without the promise "exited"'
  const { id, slots } = engine
  if (id !== undefined && ids.includes(id)) return `whose id "${id}" another engine has`
  return slots === undefined || (Number.isSafeInteger(slots) && slots > 0) ? undefined : `with ${slots} slots`
}
