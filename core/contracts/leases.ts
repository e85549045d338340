import type { CorralError } from '../errors.ts'
import type { LoadOptions } from '../models/load-options.ts'
import type { ModelName } from '../models/model-name.ts'
import type { RequestBounds } from './callers.ts'
import type { Engine, EngineMode, MemoryUse } from './engines.ts'
import type { Model } from './models.ts'
import type { Progress, Waiting } from './progress.ts'

export interface LeaseRequest extends Waiting {
  model: ModelName
  /** The client id for fair sharing of slots and queues (`Caller.turn`); the server itself if absent. */
  turn?: string
  /** The owner of the prompt (`Caller.owner`); the server itself if absent. */
  owner?: string
  /** The name of the caller's key. */
  keyName?: string | undefined
  /** Limits of the caller's key, which replace `limits`; see `Caller.bounds`. */
  bounds?: Partial<RequestBounds> | undefined
  /** Called immediately with the clamped values if options of the request are over their limits. */
  onClamped?: (clamped: Partial<LoadOptions>) => void
  /** Called before the answer of another server with the tokens of the context that it has enlarged for the request. */
  onGrown?: (context: string) => void
  /** Called before the answer of another server with the constraints of the schema that it does not enforce. */
  onUnenforcedSchema?: (pointers: string) => void
  mode?: EngineMode
  /** Only load the model. No slot is taken. */
  loadOnly?: boolean
  /** Number of slots to take; 1 by default, at most all slots of the engine. */
  slots?: number
  /** Only the request's own options. */
  options: Partial<LoadOptions>
  /** Whether a reload gives the model no more slots than `options` say, to save memory for a larger context. */
  fewerSlots?: boolean
  /** Whether the stream is resumable: if another server answers and becomes unreachable, a third one takes over. */
  resumable?: boolean
  /** Milliseconds. Negative means forever. 0 unloads the model once it is idle. If absent, the current value stays. */
  keepAlive?: number
  /** The client's conversation id (header `x-session-id`). */
  session?: string
  /** It runs only while no client is waiting, evicts no model that clients use, and gives its slot back. */
  idle?: boolean
  /** It continues an answer whose earlier lease rests: a full queue does not refuse it. */
  continues?: boolean
  signal: AbortSignal
}

/** The right to use a running engine, with one or more slots. */
export interface Lease {
  /** May be replaced by `letOthers`. */
  readonly engine: Engine
  readonly variant: Model
  /** Aborted together with the caller's own signal, or with a CorralError as reason when the engine is taken away. */
  readonly signal: AbortSignal
  /** Milliseconds this request waited for the model to load; 0 if it was loaded. */
  readonly loadDuration: number
  /** Lets waiting clients have their turn between two parts of the work. @throws the errors of `lease` */
  letOthers(): Promise<void>
  /**
   * Gives the slots back while work is done that needs no engine, and the answer then continues with another lease. Until
   * the returned function is called, the engine is not unloaded for being idle. Others may still take its memory.
   */
  rest(): () => void
  release(): void
}

export interface RunningModel {
  variant: Model
  mode: EngineMode
  engine: Engine
  /** Bytes reserved for it in each memory pool; empty if it uses no memory of this machine. */
  reserved: MemoryUse
  options: LoadOptions
  /** Time at which it is unloaded unless it gets requests. Undefined means never. */
  expiresAt: Date | undefined
  running: number
  queued: number
}

export interface LoadingModel {
  variant: Model
  mode: EngineMode
  /** "waiting" means for memory that other models use. Its progress names these models. */
  state: 'queued' | 'waiting' | 'converting' | 'loading' | 'draining' | 'stopping'
  progress: Progress | undefined
  queued: number
}

export interface Scheduler {
  /** Waits for a slot of an engine that serves this model. Loads it first if needed. */
  lease(request: LeaseRequest): Promise<Lease>
  /**
   * Leases an engine, runs `use`, and releases the engine. If the engine dies before the request has sent anything
   * (`mayRetry` returns true), it is retried once on a fresh engine, unless the request caused the death (`retryable`
   * is false). Attempts that did not reach the engine (`details.sent` is false) do not count.
   */
  withLease<T>(request: LeaseRequest & { mayRetry?: () => boolean }, use: (lease: Lease) => Promise<T>): Promise<T>
  /** Unloads a variant; its requests end with `model_stopped`. @throws `model_not_found`, `model_not_loaded` */
  stop(model: ModelName): Promise<void>
  /** Sets how long a loaded model stays without requests, for all clients (milliseconds; see LeaseRequest). */
  keepAlive(model: ModelName, ms: number): void
  running(): RunningModel[]
  loading(): LoadingModel[]
  /** Why a model could not be loaded, if the last attempt failed. */
  loadFailure(model: Model): CorralError | undefined
}
