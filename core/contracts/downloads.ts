import type { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { FileLocation, HubRepository } from './hubs.ts'
import type { ModelDefaults, Origin } from './models.ts'
import type { CardReply, PlanReply, PullReply, Recommendation, SearchReply } from './native-records.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

export type { Downloads } from './hubs.ts'

export interface PullRequest {
  /** As the client wrote it: `[hf:|csghub:|modelscope:|…]owner/name[:variant][@revision]`, or an address. */
  model: string
  /** Name to store it under; required for addresses without a name. */
  as?: string
  /** `model` is a stored model's name: its newest revision is wanted, from the hub that it came from. */
  update?: boolean
  caller: PullCaller
}

/** The client that requests a pull: its id for fair sharing, and whether it uses the private socket. */
export type PullCaller = Pick<Caller, 'turn' | 'isLocal'>

/** A search at hubs. */
export interface SearchRequest {
  words: string
  /** Name of the hub, or `all`. If undefined, searches the hubs that names without a prefix use. */
  hub?: string | undefined
  limit: number
  caller: PullCaller
}

/** A file that a pull downloads. */
export interface PlannedDownload {
  /** Path in the repository. */
  path: string
  storedPath: string
  role: 'model' | 'projector' | 'draft' | 'other'
  /** Bytes; undefined if unknown before the transfer. */
  size: number | undefined
  sha256?: string | undefined
  gitSha1?: string | undefined
}

/** The planned download and the reasons for its choices. */
export interface PullPlan extends Omit<PlanReply, 'model' | 'repository' | 'files'> {
  name: ModelName
  repository: Omit<HubRepository, 'files'>
  files: PlannedDownload[]
  /** The requested name of Ollama's library, with its tag. */
  libraryName?: string
  /** The origin and defaults to record if the files come from another server that has the model. */
  origin?: Origin
  defaults?: ModelDefaults
  /** Whether it was requested through the private socket: the requested addresses may be private ones. */
  isLocal: boolean
}

export type PullRecord = PullReply
/** Progress of one file, in bytes. */
export type FileProgress = PullRecord['files'][number]

/** Receives the latest progress of single files. */
export type OnPullEvent = (files: FileProgress[]) => void

/** One pull, shared by all clients that requested it. */
export interface Pull {
  readonly plan: PullPlan
  /** Missing parts of the stored model, such as a README that could not be fetched. Known once the model is stored. */
  readonly warnings: readonly string[]
  record(): PullRecord
  /**
   * Resolves when the model is stored. `onEvent` gets the progress of all files first, then the changes, at most ten
   * times per second and file, and the end of each file. Aborting the signal ends the watch. Some seconds after the
   * last watcher has left, the pull pauses unless it is detached.
   * @param onWaiting called each time the pull begins to wait for others
   * @throws CorralError that ended the pull; the signal's reason
   */
  watch(onEvent: OnPullEvent, signal: AbortSignal, onWaiting?: () => void): Promise<StoredVariant>
}

/** Other servers that may have the files of a pull. They are tried before its hub. */
export interface FileMirror {
  /** Returns the URL of the file, and another one if that fails. Undefined if only the hub has it. */
  locate(plan: PullPlan, file: PlannedDownload, signal: AbortSignal): Promise<FileLocation | undefined>
}

declare module './hubs.ts' {
  interface FileLocation {
    /**
     * For certificates of other authorities than the system's (all that are accepted, in PEM), or with another name.
     * `cert` and `key` identify this machine.
     */
    tls?: { ca?: readonly string[]; servername?: string; cert?: string; key?: string }
  }

  interface Downloads {
    /**
     * Plans what a pull would download, by requests to the hub.
     * @throws CorralError `invalid_model_name`, `repo_not_found`, `hub_forbidden`, `hub_unreachable`,
     * `hub_rate_limited`, `unsupported_capability` if the repository has nothing that can run, `model_exists` if a
     * model of this name has another origin, `address_not_allowed`, `rate_limited`
     */
    plan(request: PullRequest, waiting: Waiting): Promise<PullPlan>
    /** Returns what a repository says about itself. @throws as `plan` */
    card(request: PullRequest, waiting: Waiting): Promise<CardReply>
    /** Recommends models, and says whether they fit this machine. No hub is asked. */
    recommended(): Promise<Recommendation[]>
    /** Searches hubs that answer. @throws CorralError `invalid_request` if none can search, or the first error */
    search(request: SearchRequest, waiting: Waiting): Promise<SearchReply>
    /** Starts, continues or joins a pull, unless the model is stored. @throws `insufficient_storage`, `rate_limited` */
    pull(plan: PullPlan, options: { detached: boolean; caller: PullCaller }): Promise<Pull | undefined>
    /** @returns removes it */
    addMirror(mirror: FileMirror): () => void
    list(): PullRecord[]
    /** Bytes of files that pulls have received since the start, including files that another model had on the disk. */
    received(): number
    /** The hosts, addresses and networks beside public ones that clients may name. */
    privateAddresses(): readonly string[]
    /** Pauses a pull, by id or model. `unlessShared` spares pulls that others need. @throws `model_not_found` */
    pause(id: string, options?: { unlessShared?: boolean }): Promise<PullRecord>
    /** Continues it, detached. @throws as `pause`, and `rate_limited` */
    resume(id: string, caller: PullCaller): Promise<PullRecord>
    /** Ends it and removes its files; its watchers get `pull_cancelled`. @throws as `pause` */
    cancel(id: string): Promise<void>
    /** Cancels all pulls of a model, or of one variant. @returns how many there were */
    cancelModel(name: ModelName, error: CorralError): Promise<number>
  }
}
