import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import type { EngineSettings } from '../config/model-settings.ts'
import type { CorralError, ErrorCode } from '../errors.ts'
import type { BudgetState } from '../http/rate-limit-headers.ts'
import type { ModelName } from '../models/model-name.ts'
import type { LogLevels } from '../system/log-levels.ts'
import type { Runtimes } from './builds.ts'
import type { Caller } from './callers.ts'
import type { Conversion } from './conversion.ts'
import type { EngineLogRecord } from './engine-log.ts'
import type { Adoption } from './found-models.ts'
import type { HardwareService } from './hardware.ts'
import type { ModelEvent, PullEvent } from './hooks.ts'
import type { LeaseRequest } from './leases.ts'
import type { Model } from './models.ts'
import type { NativeApi } from './native-api.ts'
import type { LoadingRecord, MemberRecord, ReplicasRecord, RunningRecord } from './native-records.ts'
import type { SchedulerStats } from './scheduler-stats.ts'
import type { StateFeed, StateTopic } from './state-events.ts'
import type { RunningTrial, TrialRequest, TrialSettings, Tunable } from './trials.ts'
import type { WorkerHost } from './workers.ts'

/** Who may call. Which address the server itself listens on it knows; other listeners have theirs checked. */
export interface Access {
  /**
   * Checks another address to listen on, as the server's own is checked.
   * @param setting the path of the setting that names it
   * @param isKeyless whether programs of this machine need no key there, whatever holds elsewhere: only where what can
   * be asked there is not more than an operator without a key may see
   * @returns called with each request that comes by it before any route sees it
   * @throws ConfigError when everybody in the network could use the server and nobody has said that they may
   */
  admit(
    address: { host: string; port: number },
    setting: string,
    isKeyless?: boolean
  ): (request: IncomingMessage) => void
  /** Whether requests may come from several owners (`Caller.owner`), as where there are several keys. */
  severalOwners(): boolean
  /** The owner (`Caller.owner`) of what belongs to the key of this name; undefined where there is no such key. */
  ownerOf(key: string): string | undefined
  /** What requests of this owner may do now; undefined where its key is no more, or keys have come to be required. */
  callerOf(owner: string): Omit<Caller, 'turn' | 'address'> | undefined
}

/** What clients take of models. */
export interface Usage {
  /** What is left of the budgets that hold for a caller over all models. */
  budgetsOf(caller: Caller): Promise<BudgetState[]>
}

/** The page for browsers. */
export interface WebPage {
  /** Where it is, such as `/`. */
  readonly path: string
  /** Sends the page. */
  sendPage(reply: FastifyReply): FastifyReply
}

export interface LoadFailure extends ModelEvent {
  readonly code: ErrorCode
  /** As in `UnloadEvent`. */
  readonly cause?: string
}

export interface PullFailure extends Omit<PullEvent, 'size'> {
  readonly code: ErrorCode
}

/*
 * What only the plugins that come with corral see of the services and of their context. It is kept out of the interfaces
 * themselves, since these are the types that authors of plugins get.
 */

declare module './storage.ts' {
  interface Storage {
    /** All variants of this format, without a look at the others. */
    safetensors(): StoredVariant[]
  }
}

declare module '../plugins/plugin.ts' {
  interface CoreSettings extends CoreConfig {}

  interface PluginContext {
    /** What each part logs. */
    readonly logLevels: LogLevels
  }
}

declare module './callers.ts' {
  interface Caller {
    /** When its key ends, in ISO 8601; absent where it does not. */
    readonly expires?: string
    /** The session of a browser that it came by, and when that ends, in ISO 8601. */
    readonly session?: { readonly id: string; readonly expires: string }
  }
}

declare module './hooks.ts' {
  interface HookedRequest {
    /**
     * For headers, while they can be set; its `request.record` has how the request went so far. Absent if a plugin of
     * somebody else calls the hooks itself.
     */
    readonly reply?: FastifyReply
  }

  interface PluginHooks {
    /** Runs after a model could not be loaded. Nothing waits for it; errors are logged. */
    loadFailed?(event: LoadFailure): Promise<void> | void
    /** Runs after a pull failed, also where it is tried again by itself. Nothing waits for it; errors are logged. */
    pullFailed?(event: PullFailure): Promise<void> | void
    /** Runs after something changed that `GET /api/events` shows. Often, so that it must do next to nothing. */
    stateChanged?(topic: StateTopic): void
  }

  interface Hooks {
    loadFailed(event: LoadFailure): void
    pullFailed(event: PullFailure): void
    /** Called where a record of this topic may have changed; what moves all the time is looked at anyway. */
    stateChanged(topic: StateTopic): void
  }
}

/** What engines of other servers hold in memory, these servers, and of which models more or fewer of them should. */
export interface Elsewhere {
  running: readonly RunningRecord[]
  loading: readonly LoadingRecord[]
  members: readonly MemberRecord[]
  replicas: readonly ReplicasRecord[]
}

declare module './models.ts' {
  interface BroughtModel {
    /** 64 hex digits made of the digests of its files, if it has files elsewhere. */
    readonly digest?: string
    /** ISO 8601 UTC with milliseconds. */
    readonly modifiedAt?: string
    readonly defaults?: ModelDefaults
  }
}

declare module './engines.ts' {
  interface Engine {
    /**
     * The engine as one request uses it, for engines of other servers: these load models themselves, so they need the
     * request's options and whose it is. Where nothing but a load is wanted, it resolves once the model is loaded there.
     */
    forRequest?(request: LeaseRequest, signal: AbortSignal): Promise<Engine> | Engine
  }

  interface EngineProvider {
    /** Where its engines are of other servers: what these hold. The scheduler's own records of them are not shown then. */
    elsewhere?(): Elsewhere
    /** Unloads a model at all servers that hold it. @returns whether any did */
    unload?(model: Model): Promise<boolean>
    /** Sets how long a model stays in the memory of other servers; milliseconds, as `Scheduler.keepAlive`. */
    keepAlive?(model: Model, ms: number): void
  }

  interface EngineSpec {
    /** What `config.yaml` says of the model beyond its options; files in it are absolute. */
    settings?: EngineSettings
  }

  interface EngineProvider {
    /**
     * Settings of its engines for a model that may make them faster, with the values worth a try on this machine; the
     * most important first. Absent where there are none.
     * @param spec with what the trial has set already
     * @param given what it has set: part of the settings of each value
     */
    tunables?(spec: EngineSpec, given: TrialSettings): Promise<Tunable[]>
    /** As `Engines.checkTemplate`. */
    checkTemplate?(template: string, signal: AbortSignal): Promise<void>
  }

  interface Engines {
    /** Checks a model's chat template with the engines that will read it. @throws CorralError `invalid_request` */
    checkTemplate(template: string, signal: AbortSignal): Promise<void>
    /** Options of requests that any engine is known to know; undefined where no provider says what its engines know. */
    knownOptions(): ReadonlySet<string> | undefined
    /** What the latest engines of a model printed, the newest first. */
    logs(model: Model): EngineLogRecord[]
    /** What engines of other servers hold, of all providers. */
    elsewhere(): Elsewhere
    /** Settings of the scheduler's section that concern providers. */
    readonly settings: {
      /** Bytes of disk for what engines keep of conversations when they are unloaded; 0 is none. */
      readonly promptCache: number
      /** Bytes of the machine's memory that all engines together may take; undefined is what it can spare. */
      readonly memory: number | undefined
      /** Bytes of each GPU that all engines together may take; undefined is what it can spare. */
      readonly gpuMemory: number | undefined
    }
    /** Bytes of the machine's memory that all engines together may take now. */
    hostMemory(): Promise<number>
  }
}

declare module './callers.ts' {
  interface Caller {
    /** What it asks of models takes only what no client wants; see `LeaseRequest.idle`. */
    readonly idle?: boolean
  }
}

declare module './leases.ts' {
  interface LeaseRequest {
    /** The conversation that the client says this is a part of (header `x-session-id`). */
    session?: string
    /**
     * It waits for what no client wants, and gives it back when one does: it evicts no model that clients use, and leaves
     * them a slot. `withLease` then waits once more. For work that nobody waits for.
     */
    idle?: boolean
  }

  interface Scheduler {
    /** A snapshot of figures, for monitoring. */
    stats(): SchedulerStats
    /** Why a model could not be loaded, where the last try failed. */
    loadFailure(model: Model): CorralError | undefined
    /**
     * Loads a model anew with other settings than the configuration's, which hold until the signal is aborted or another
     * trial of the session takes its place. At the end the model is as it was: loaded with what it was loaded with, or
     * not loaded. Where the load fails, requests of others get the usual settings, and the session goes on.
     * @returns once it is loaded
     * @throws CorralError `trial_running` where another session has one; what a load fails with
     */
    trial(request: TrialRequest): Promise<RunningTrial>
    /** What a trial of a model may set, beside what it has set already; nothing where its engines offer nothing. */
    tunables(model: ModelName, given: TrialSettings): Promise<Tunable[]>
  }
}

declare module './services.ts' {
  interface Services {
    hardware: HardwareService
    runtimes: Runtimes
    workerHost: WorkerHost
    conversion: Conversion
    adoption: Adoption
    access: Access
    usage: Usage
    nativeApi: NativeApi
    stateFeed: StateFeed
    web: WebPage
  }
}
