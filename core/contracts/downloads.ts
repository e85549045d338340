import type { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { FileLocation, HubRepository } from './hubs.ts'
import type { ModelDefaults, Origin } from './models.ts'
import type { PlanReply, PullReply, SearchReply } from './native-records.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

export type { Downloads } from './hubs.ts'

/** The model that a client requests. */
export interface PullRequest {
  /** As the client wrote it: `[hf:|csghub:|modelscope:|…]owner/name[:variant][@revision]`, or an address. */
  model: string
  /** Name to store it under; required for addresses without a name. */
  as?: string
  caller: PullCaller
}

/** The client that requests a pull: its id for fair sharing, and whether it uses the private socket. */
export type PullCaller = Pick<Caller, 'turn' | 'isLocal'>

/** What is looked for at hubs. */
export interface SearchRequest {
  words: string
  /** Name of the hub, or `all`; undefined is those where a name without prefix is looked for. */
  hub?: string | undefined
  /** Most repositories of each hub. */
  limit: number
  caller: PullCaller
}

/** A file that a pull downloads. */
export interface PlannedDownload {
  /** In the repository. */
  path: string
  /** Path in the model's storage. */
  storedPath: string
  role: 'model' | 'projector' | 'other'
  /** Bytes; undefined where that is unknown before the transfer. */
  size: number | undefined
  sha256?: string | undefined
  gitSha1?: string | undefined
}

/** What a pull would download, and why. */
export interface PullPlan extends Omit<PlanReply, 'model' | 'repository' | 'files'> {
  name: ModelName
  repository: Omit<HubRepository, 'files'>
  files: PlannedDownload[]
  /** The name of Ollama's library that was asked for, with its tag. */
  libraryName?: string
  /** What is recorded as its origin, and what was set for it, where the files come from another server that has the model. */
  origin?: Origin
  defaults?: ModelDefaults
  /** It was made by the private socket: the addresses that were asked for may be private ones. */
  isLocal: boolean
}

/** An unfinished pull, as the native API lists it. */
export type PullRecord = PullReply
/** Progress of one file, in bytes. */
export type FileProgress = PullRecord['files'][number]

/** Receives the latest progress of single files. */
export type OnPullEvent = (files: FileProgress[]) => void

/** One pull, shared by all clients that requested it. */
export interface Pull {
  readonly plan: PullPlan
  /** What the stored model lacks, such as a README that could not be fetched. Known when it is stored. */
  readonly warnings: readonly string[]
  record(): PullRecord
  /**
   * Resolves when the model is stored. `onEvent` gets the progress of all files at once, then what changes, at most ten
   * times per second and file, and the end of each file. Aborting the signal ends the watch; some seconds after the last
   * watcher has left, the pull pauses unless it is detached.
   * @param onWaiting called each time the pull begins to wait for others
   * @throws CorralError that ended the pull; the signal's reason
   */
  watch(onEvent: OnPullEvent, signal: AbortSignal, onWaiting?: () => void): Promise<StoredVariant>
}

/** Other servers that may have the files of a pull. They are asked before its hub. */
export interface FileMirror {
  /**
   * Where a file of this very content can be had. Called again for the same file when that stops working, or was
   * something else; undefined where no other server has it: its hub is asked from then on.
   */
  locate(plan: PullPlan, file: PlannedDownload, signal: AbortSignal): Promise<FileLocation | undefined>
}

declare module './hubs.ts' {
  interface FileLocation {
    /** For certificates of an authority that only the settings name (PEM), or made out to another name. */
    tls?: { ca?: string; servername?: string }
  }

  interface Downloads {
    /**
     * Plans what a pull would download, by requests to the hub.
     * @throws CorralError `invalid_model_name`, `repo_not_found`, `hub_forbidden`, `hub_unreachable`, `hub_rate_limited`,
     * `unsupported_capability` where the repository has nothing to run, `model_exists` where a model of this name has
     * another origin, `address_not_allowed`, `rate_limited`
     */
    plan(request: PullRequest, waiting: Waiting): Promise<PullPlan>
    /**
     * Looks for models at hubs. One hub's failure does not hide what others have.
     * @throws CorralError `invalid_request` where no such hub has a search; where all fail, the failure of the first
     */
    search(request: SearchRequest, waiting: Waiting): Promise<SearchReply>
    /**
     * Starts a planned pull, continues it, or joins it. Undefined when the model is stored already.
     * @throws CorralError `insufficient_storage`, `rate_limited`
     */
    pull(plan: PullPlan, options: { detached: boolean; caller: PullCaller }): Promise<Pull | undefined>
    /** @returns removes it */
    addMirror(mirror: FileMirror): () => void
    /** All unfinished pulls, oldest first. */
    list(): PullRecord[]
    /** Bytes of files that pulls got since the start, those included that another model had on the disk. */
    received(): number
    /**
     * @param id of a pull, or the name of its model
     * @param options.unlessShared leaves it running where more than one client watches it, or where it is detached
     * @throws CorralError `model_not_found`
     */
    pause(id: string, options?: { unlessShared?: boolean }): Promise<PullRecord>
    /** Continues it, detached. @throws as `pause`, and `rate_limited` */
    resume(id: string, caller: PullCaller): Promise<PullRecord>
    /** Ends it and removes its files; its watchers get `pull_cancelled`. @throws as `pause` */
    cancel(id: string): Promise<void>
    /** Cancels all pulls of a model, or of one variant. @returns how many there were */
    cancelModel(name: ModelName, error: CorralError): Promise<number>
  }
}
