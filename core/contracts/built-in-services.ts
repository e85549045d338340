import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import type { EngineSettings } from '../config/model-settings.ts'
import type { ErrorCode } from '../errors.ts'
import type { BudgetState } from '../http/rate-limit-headers.ts'
import type { LoadOptions } from '../models/load-options.ts'
import type { ModelName } from '../models/model-name.ts'
import type { LogLevels } from '../system/log-levels.ts'
import type { Runtimes } from './builds.ts'
import type { Caller } from './callers.ts'
import type { Conversion } from './conversion.ts'
import type { EngineLogRecord } from './engine-log.ts'
import type { EngineFields, EngineMode, MemoryUse } from './engines.ts'
import type { Adoption } from './found-models.ts'
import type { HardwareService } from './hardware.ts'
import type { ModelEvent, PullEvent } from './hooks.ts'
import type { LeaseRequest, LoadingModel, RunningModel } from './leases.ts'
import type { Model } from './models.ts'
import type { NativeApi } from './native-api.ts'
import type { LoadingRecord, MemberRecord, PrefixesRecord, ReplicasRecord, RunningRecord } from './native-records.ts'
import type { StateFeed, StateTopic } from './state-events.ts'
import type { RunningTrial, TrialRequest, TrialSettings, Tunable } from './trials.ts'
import type { WorkerHost } from './workers.ts'

/** Access control. The server checks its own address; additional listeners are checked here. */
export interface Access {
  /**
   * Checks an additional address to listen on, like the server's own address.
   * @param setting the path of the setting that contains it
   * @param isKeyless whether programs on this machine need no key there, whatever applies elsewhere. Only for listeners
   * that offer no more than an operator without a key may see.
   * @returns a function to call with each of its requests before any route sees it
   * @throws ConfigError if everybody in the network could use the server and the user has not allowed that
   */
  admit(
    address: { host: string; port: number },
    setting: string,
    isKeyless?: boolean
  ): (request: IncomingMessage) => void
  /** The owner (`Caller.owner`) of the data of the key with this name, if the key exists. */
  ownerOf(key: string): string | undefined
  /** The current permissions of this owner; undefined if its key was removed, or if keys are required now. */
  callerOf(owner: string): Omit<Caller, 'turn' | 'address'> | undefined
}

export interface Usage {
  /** The remaining budgets of a caller over all models. */
  budgetsOf(caller: Caller): Promise<BudgetState[]>
}

/** Finds the files that clients stored with POST /v1/files. */
export interface UserFileFinder {
  /** Returns undefined for files that do not exist, and for files of other owners. */
  find(owner: string, id: string): { filename: string; bytes: number; path: string } | undefined
  /** Lists the files of an owner, with `createdAt` in seconds. */
  list(owner: string): { id: string; filename: string; purpose: string; createdAt: number }[]
}

export interface WebPage {
  readonly path: string
  sendPage(reply: FastifyReply): FastifyReply
  /** Storage of its conversations, and the limits per key. Without a folder, they are in the data directory. */
  conversations(): { place: 'browser' | 'server'; folder: string; count: number; bytes: number }
}

/** The state of a model in one mode, for models that are loaded, requested or blocked. */
export interface EngineStats {
  readonly model: string
  readonly mode: EngineMode
  readonly isLoaded: boolean
  /** Maximum concurrent requests. 0 if the model is not loaded. */
  readonly slots: number
  readonly freeSlots: number
  readonly running: number
  readonly waiting: number
  readonly longestWait: number
  /** Whether its loads failed repeatedly, so that requests are refused for a while. */
  readonly isBlocked: boolean
  /** Bytes reserved for it in each memory pool. */
  readonly reserved: MemoryUse
}

export interface SchedulerStats {
  readonly engines: readonly EngineStats[]
  readonly requests: number
  readonly maxLoaded: number
  /** Bytes by pool that all engines together use and may use. A pool without a budget has no limit. */
  readonly memory: { readonly reserved: MemoryUse; readonly budget: MemoryUse }
}

export type PoolsInUse = Record<string, { used: number; total: number }>

/** What a load would take. All fields but `keepAlive` are absent for models of other servers. */
export interface LoadPreview {
  /** Milliseconds for which models stay loaded without requests by default, or infinite. */
  keepAlive: number
  /** The options after their limits. */
  options?: LoadOptions
  /** The options of the request that were over a limit, with the limit. */
  limited?: Partial<LoadOptions> | undefined
  /** Absent if it is unknown before a conversion, or without a build. */
  use?: MemoryUse | undefined
  /** Whether it fits beside the loaded models, alone, or not at all. */
  fits?: 'now' | 'alone' | 'no'
}

export interface LoadFailure extends ModelEvent {
  readonly code: ErrorCode
  /** As in `UnloadEvent`. */
  readonly cause?: string
}

export interface PullFailure extends Omit<PullEvent, 'size'> {
  readonly code: ErrorCode
}

/* Parts of the services that only built-in plugins see, apart from the types for plugin authors. */

declare module './storage.ts' {
  interface Storage {
    /** Creates an empty folder on the disk of the models. If corral is killed, the next start removes it. */
    scratch(): Promise<string>
  }
}

declare module '../plugins/plugin.ts' {
  interface CoreSettings extends CoreConfig {}

  interface PluginContext {
    readonly logLevels: LogLevels
  }
}

declare module './callers.ts' {
  interface Caller {
    /** When its key expires, in ISO 8601; absent if it does not expire. */
    readonly expires?: string
    /** The browser session that the request belongs to, and when it expires, in ISO 8601. */
    readonly session?: { readonly id: string; readonly expires: string }
    /** Whether its requests to models run in the background; see `LeaseRequest.idle`. */
    readonly idle?: boolean
  }
}

declare module './hooks.ts' {
  interface HookedRequest {
    /** For headers, while they can be set, and the request's record. Absent if another plugin calls the hooks. */
    readonly reply?: FastifyReply
  }

  interface PluginHooks {
    /** Runs after a model failed to load. Not awaited; errors are logged. */
    loadFailed?(event: LoadFailure): Promise<void> | void
    /** Runs after a pull failed, even if it will be retried. Not awaited; errors are logged. */
    pullFailed?(event: PullFailure): Promise<void> | void
    /** Runs after something changed that `GET /api/events` shows. It runs often, so it must do very little. */
    stateChanged?(topic: StateTopic): void
  }

  interface Hooks {
    loadFailed(event: LoadFailure): void
    pullFailed(event: PullFailure): void
    /** Reports that a record of this topic may have changed. Values that change all the time are polled anyway. */
    stateChanged(topic: StateTopic): void
  }
}

/** Models in memory on other servers, these servers, and the models that should have more or fewer replicas. */
export interface Elsewhere {
  running: readonly RunningRecord[]
  loading: readonly LoadingRecord[]
  members: readonly MemberRecord[]
  replicas: readonly ReplicasRecord[]
  /** Absent without these servers. */
  prefixes?: PrefixesRecord | undefined
  /** How many of these servers there should be, if known. */
  wanted?: number | undefined
}

export interface HeldElsewhere {
  running: readonly RunningModel[]
  loading: readonly LoadingModel[]
}

declare module './models.ts' {
  interface BroughtModel {
    /** 64 hex digits computed from the digests of its files, if it has files on other servers. */
    readonly digest?: string
    /** ISO 8601 UTC with milliseconds. */
    readonly modifiedAt?: string
    readonly defaults?: ModelDefaults
  }
}

declare module './engines.ts' {
  interface Engine {
    /** Prepares the engine for one request. Other servers need its options and owner to load the model. */
    forRequest?(request: LeaseRequest, signal: AbortSignal): Promise<Engine> | Engine
  }

  interface EngineProvider {
    /** Models in the memory of other servers. The scheduler lists them in place of its own records. */
    elsewhere?(): Elsewhere
    /** The same models as the scheduler lists its own. Their engines report their properties and slots only. */
    held?(): HeldElsewhere
    /**
     * An engine of a linked machine that has the same model in memory, with as many free slots. For requests that would
     * have to wait here.
     */
    standIn?(model: Model, mode: EngineMode, slots: number): Engine | undefined
    /** Unloads a model on all other servers. @returns whether any server had it loaded */
    unload?(model: Model): Promise<boolean>
    /** Sets how long a model stays loaded on other servers, in milliseconds, as `Scheduler.keepAlive`. */
    keepAlive?(model: Model, ms: number): void
    /** Settings that may make a model faster, most important first. Each value includes the `given` settings. */
    tunables?(spec: EngineSpec, given: TrialSettings): Promise<Tunable[]>
    /**
     * Like `estimate`, but does not start any work. Returns undefined if a conversion, a build or an RPC worker is needed first.
     * @param usual the options that its engines usually have; an earlier measurement of them counts
     */
    preview?(spec: EngineSpec, usual: LoadOptions, signal: AbortSignal): Promise<MemoryEstimate | undefined>
    /** As `Scheduler.preview` of another server that has the model, without `keepAlive`. */
    previewElsewhere?(model: Model, options: Partial<LoadOptions>): Promise<Partial<LoadPreview> | undefined>
    /** Like `Engines.used`, but only for the provider's own pools. */
    used?(): Promise<PoolsInUse>
    /** As `Engines.checkTemplate`. */
    checkTemplate?(template: string, signal: AbortSignal): Promise<void>
  }

  interface EngineSpec {
    /** Settings of the model in `config.yaml` besides its options. Its file paths are absolute. */
    settings?: EngineSettings
  }

  interface Engines {
    /** Checks a model's chat template with the engines that will use it. @throws CorralError `invalid_request` */
    checkTemplate(template: string, signal: AbortSignal): Promise<void>
    /** Memory that all programs of the machine use now, by pool. Pools of unknown size are left out. */
    used(): Promise<PoolsInUse>
    /** Request options that at least one engine knows; undefined if no provider lists its options. */
    knownOptions(): ReadonlySet<string> | undefined
    /** Output of the latest engines of a model, newest first. */
    logs(model: Model): EngineLogRecord[]
    /** The conversation states that all providers have stored for each model. */
    storedConversations(): Promise<StoredConversations[]>
    /** As `EngineProvider.forgetConversations`, for all providers. */
    forgetConversations(of: { model?: string; owner?: string }): Promise<number>
    /** Models in memory on other servers, from all providers. */
    elsewhere(): Elsewhere
    /** As `EngineProvider.held`, from all providers. */
    held(): HeldElsewhere
    /** Like `EngineProvider.standIn`, from the first provider that returns an engine. */
    standIn: NonNullable<EngineProvider['standIn']>
    /** Settings of the scheduler's section that concern providers. */
    readonly settings: {
      /** Bytes of disk for the states of conversations; 0 stores none, also in memory. */
      readonly promptCache: number
      /** Bytes of RAM for these states. Undefined means a share of the free memory. */
      readonly promptCacheMemory: number | undefined
      /** Whether methods of speculative decoding are tried and the fastest is kept. */
      readonly speculation: boolean
      /** Bytes of RAM for all engines together. Undefined means all that the machine can spare. */
      readonly memory: number | undefined
      /** Bytes of each GPU's memory for all engines together. Undefined means all that the GPU can spare. */
      readonly gpuMemory: number | undefined
    }
    /** Bytes of RAM that all engines together may use now. */
    hostMemory(): Promise<number>
  }
}

declare module './leases.ts' {
  interface Lease {
    /** Whether a linked machine answers because the request would have to wait here. */
    readonly isElsewhere?: boolean
  }

  interface Scheduler {
    stats(): SchedulerStats
    /**
     * Reloads a model with trial settings, which apply until the signal is aborted or the next trial of the session
     * replaces them. At the end the model is as before: loaded with its previous settings, or not loaded. If the load
     * fails, other requests get the usual settings, and the session continues.
     * @returns once it is loaded
     * @throws CorralError `trial_running` if another session runs a trial; the error of a failed load
     */
    trial(request: TrialRequest): Promise<RunningTrial>
    /** Returns what a model would take with these options of a request. Loads and changes nothing. */
    preview(model: Model, options: Partial<LoadOptions>, caller: Pick<Caller, 'bounds'>): Promise<LoadPreview>
    /** Settings that a trial of a model may try next, given its settings so far; empty if its engines offer none. */
    tunables(model: ModelName, given: TrialSettings): Promise<Tunable[]>
  }
}

/** An item of the Responses API. */
export interface StoredItem {
  type?: string
  role?: string
}

/** Answers that a later request of the same owner continues by their id. */
export interface StoredResponses {
  /** @param entry.input the whole conversation before the response, without instructions */
  add(owner: string, entry: { response: StoredResponse; input: readonly StoredItem[] }): void
  /** @throws CorralError `response_not_found` with this `param` */
  get(owner: string, id: string, param: string): { response: StoredResponse; input: readonly StoredItem[] }
  /** Completes items of a request as they are stored. */
  toItems(input: readonly object[]): StoredItem[]
  /** Converts a conversation to the messages of a chat. */
  toMessages(items: readonly StoredItem[]): EngineFields[]
}
type StoredResponse = Record<string, unknown> & { id: string; output: readonly StoredItem[] }

declare module './services.ts' {
  interface Services {
    hardware: HardwareService
    runtimes: Runtimes
    workerHost: WorkerHost
    conversion: Conversion
    adoption: Adoption
    access: Access
    usage: Usage
    responses: StoredResponses
    nativeApi: NativeApi
    stateFeed: StateFeed
    web: WebPage
    userFiles: UserFileFinder
  }
}
