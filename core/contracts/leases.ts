import type { LoadOptions } from '../models/load-options.ts'
import type { ModelName } from '../models/model-name.ts'
import type { RequestBounds } from './callers.ts'
import type { Engine, EngineMode, MemoryUse } from './engines.ts'
import type { Model } from './models.ts'
import type { Progress, Waiting } from './progress.ts'

export interface LeaseRequest extends Waiting {
  model: ModelName
  /** The client that slots and queues are shared by (`Caller.turn`); the server itself where absent. */
  turn?: string
  /** The owner of the prompt (`Caller.owner`); the server itself where absent. */
  owner?: string
  /** What the caller's key allows, in the place of what `limits` says; see `Caller.bounds`. */
  bounds?: Partial<RequestBounds> | undefined
  /** Called at once where options of the request are over their bounds, with what holds instead. */
  onClamped?: (clamped: Partial<LoadOptions>) => void
  /**
   * Called before the answer begins where a server elsewhere answers: what of the request's schema is not enforced there,
   * as the reply's header lists it.
   */
  onUnenforcedSchema?: (pointers: string) => void
  mode?: EngineMode
  /** The model is to be loaded and nothing more: no slot is taken. */
  loadOnly?: boolean
  /** How many slots it takes at once; 1 by default, all that there are where there are fewer. */
  slots?: number
  /** Only what the request itself gives. */
  options: Partial<LoadOptions>
  /** The client wants its stream to survive: where the engine is a server elsewhere that is lost, another one goes on. */
  resumable?: boolean
  /** Milliseconds; negative is for ever, 0 unloads once nothing runs; absent leaves what holds. */
  keepAlive?: number
  signal: AbortSignal
}

/** The right to use a running engine, by one slot or as many as were requested. */
export interface Lease {
  /** May be another one after `letOthers`. */
  readonly engine: Engine
  readonly variant: Model
  /** Aborted when the caller's own signal is, or with a CorralError as reason when the engine is taken away. */
  readonly signal: AbortSignal
  /** Milliseconds this request waited for the model to load; 0 when it was loaded. */
  readonly loadDuration: number
  /**
   * For work of many parts, between two of them: lets clients that wait have their turn, and waits for its own next one;
   * resolves at once where nobody waits. @throws what a lease does
   */
  letOthers(): Promise<void>
  release(): void
}

export interface RunningModel {
  variant: Model
  mode: EngineMode
  engine: Engine
  /** Bytes that count as taken by it in each memory pool; none where it takes no memory of this machine. */
  reserved: MemoryUse
  options: LoadOptions
  /** When it is unloaded if no request comes or runs any longer; undefined is never. */
  expiresAt: Date | undefined
  running: number
  queued: number
}

export interface LoadingModel {
  variant: Model
  mode: EngineMode
  /** waiting: for room that other models hold; whose, its progress says. */
  state: 'queued' | 'waiting' | 'converting' | 'loading' | 'draining' | 'stopping'
  progress: Progress | undefined
  queued: number
}

export interface Scheduler {
  /** Waits for a slot of an engine that serves this model, loading it first where needed. */
  lease(request: LeaseRequest): Promise<Lease>
  /**
   * Leases, runs `use`, and releases. When the engine dies under a request that has sent nothing yet
   * (`mayRetry` returns true), it is tried once more on a fresh engine, unless it is to blame (`retryable` is false).
   * Where the engine had not been asked yet (`details.sent` is false), that does not count.
   */
  withLease<T>(request: LeaseRequest & { mayRetry?: () => boolean }, use: (lease: Lease) => Promise<T>): Promise<T>
  /**
   * Unloads a variant (the default one for a bare name) in all its modes: running requests end with `model_stopped`.
   * @throws CorralError `model_not_found` or `model_not_loaded`
   */
  stop(model: ModelName): Promise<void>
  /** Sets how long a loaded model stays without requests, of whichever client (milliseconds; see LeaseRequest). */
  keepAlive(model: ModelName, ms: number): void
  running(): RunningModel[]
  loading(): LoadingModel[]
}
