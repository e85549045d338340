import type { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

// ---- hubs ----------------------------------------------------------------------------------------------------------

/** A file in a hub's listing, with at least one digest where the hub has one. */
export interface HubFile {
  /** In the repository, with forward slashes. Checked: relative, without `..`, control characters or reserved names. */
  path: string
  /** Bytes; undefined where the hub only reports it with the location. */
  size: number | undefined
  /** 64 hex digits in lower case. */
  sha256?: string
  /** SHA-1 of git's blob (`blob <size>\0` before the bytes), 40 hex digits in lower case. */
  gitSha1?: string
}

/** A repository at one revision. Plain data: it is stored while its files are downloaded. */
export interface HubRepository {
  /** Name of the hub. */
  hub: string
  /** In the hub's own spelling: `owner/name`, or an address for files outside of hubs. */
  id: string
  /** Identifies the content permanently: a commit, or a fingerprint of the listing where the hub has none. */
  revision: string
  /** Web address for people, without credentials. */
  address: string
  /** The hub requires agreement to terms first. */
  gated: boolean
  files: HubFile[]
  /** Private data of the hub, such as a server's address. */
  more?: Record<string, string>
}

/** Where a file can be downloaded at the moment. Never stored: it may contain a signature or a token. */
export interface FileLocation {
  url: string
  /** Sent with each request for bytes. */
  headers: Record<string, string>
  /** Proxy to go through; empty means none, undefined uses HTTPS_PROXY, HTTP_PROXY and NO_PROXY. */
  proxy?: string
  /** When it expires, in epoch milliseconds, as far as that is known. */
  expiresAt?: number
  /** Size and digest, where the hub reports them with the location and not in the listing. */
  size?: number
  sha256?: string
  /** Identifies the content at this address (a strong ETag); for files without a digest. */
  identity?: string
}

export interface HubRequest {
  /** `owner/name`, or an address for hubs that accept one. */
  id: string
  /** Branch, tag or commit; undefined is the default branch. */
  revision?: string
}

/** A source of models. Built-in and outside hubs are added in the same way, with `downloads.addHub`. */
export interface Hub {
  /** Such as `huggingface`; recorded with each model from it. */
  readonly name: string
  /** Such as `Hugging Face`. */
  readonly title: string
  /** Prefixes of names at this hub, with their separator: `hf:`, `hf.co/`, `https://huggingface.co/`. */
  readonly prefixes: readonly string[]
  /**
   * Finds a repository and lists all its files.
   * @throws CorralError `repo_not_found`, `hub_forbidden`, `hub_unreachable` or `hub_rate_limited`, each with a sentence
   * that says what to do
   */
  repository(request: HubRequest, waiting: Waiting): Promise<HubRepository>
  /**
   * The current location of a file. Called once for each file, and again when the location stops working; returns a new
   * location each time.
   * @throws as `repository`
   */
  locate(repository: HubRepository, file: HubFile, signal: AbortSignal): Promise<FileLocation>
}

// ---- pulls ---------------------------------------------------------------------------------------------------------

/** The model that a client requests. */
export interface PullRequest {
  /** As the client wrote it: `[hf:|csghub:|modelscope:|…]owner/name[:variant][@revision]`, or an address. */
  model: string
  /** Name to store it under; required for addresses without a name. */
  as?: string
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
  sha256?: string
  gitSha1?: string
}

/** What a pull would download, and why. */
export interface PullPlan {
  name: ModelName
  /** Label of the variant, such as `Q4_K_M`. */
  label: string
  format: 'gguf' | 'safetensors'
  repository: Omit<HubRepository, 'files'>
  files: PlannedDownload[]
  /** Total bytes of the files whose size is known. */
  size: number
  /** Why these files, in one sentence. */
  reason: string
  /** Labels and sizes in bytes of other variants, the best first. */
  choices: { label: string; size: number }[]
  memory: { required: number; available: number; fits: boolean }
  disk: { required: number; available: number; fits: boolean }
  /** For the user to know beforehand: it does not fit, it needs conversion, … */
  warnings: string[]
  /** The variant with exactly these files is stored already. */
  present: boolean
}

export type PullState = 'downloading' | 'storing' | 'paused' | 'failed'

/** Progress of one file, in bytes. */
export interface FileProgress {
  path: string
  completed: number
  total: number
}

/** An unfinished pull. */
export interface PullRecord {
  id: string
  /** `owner/name:label` */
  model: string
  state: PullState
  /** Continues when no client watches it. */
  detached: boolean
  origin: string
  createdAt: string
  /** Bytes on disk and in all. */
  completed: number
  total: number
  /** Bytes per second in the last seconds; 0 when it is not running. */
  speed: number
  files: FileProgress[]
  /** Why it is paused or failed. */
  reason?: string
}

/** Receives the latest progress of single files. */
export type OnPullEvent = (files: FileProgress[]) => void

/** One pull, shared by all clients that requested it. */
export interface Pull {
  readonly plan: PullPlan
  record(): PullRecord
  /**
   * Resolves when the model is stored. `onEvent` gets the progress of all files at once, then what changes, at most ten
   * times per second and file, and the end of each file. Aborting the signal ends the watch; some seconds after the last
   * watcher has left, the pull pauses unless it is detached.
   * @throws CorralError that ended the pull; the signal's reason
   */
  watch(onEvent: OnPullEvent, signal: AbortSignal): Promise<StoredVariant>
}

export interface Downloads {
  addHub(hub: Hub): void
  hubs(): readonly Hub[]
  /**
   * Plans what a pull would download, by requests to the hub.
   * @throws CorralError `invalid_model_name`, `repo_not_found`, `hub_forbidden`, `hub_unreachable`, `hub_rate_limited`,
   * `unsupported_capability` where the repository has nothing to run, `model_exists` where a model of this name has another origin
   */
  plan(request: PullRequest, waiting: Waiting): Promise<PullPlan>
  /**
   * Starts a planned pull, continues it, or joins it. Undefined when the model is stored already.
   * @throws CorralError `insufficient_storage`
   */
  pull(plan: PullPlan, options: { detached: boolean }): Promise<Pull | undefined>
  /** All unfinished pulls, oldest first. */
  list(): PullRecord[]
  /** @param id of a pull, or the name of its model. @throws CorralError `model_not_found` */
  pause(id: string): Promise<PullRecord>
  /** Continues it, detached. @throws as `pause` */
  resume(id: string): Promise<PullRecord>
  /** Ends it and removes its files; its watchers get `pull_cancelled`. @throws as `pause` */
  cancel(id: string): Promise<void>
  /** Cancels all pulls of a model, or of one variant. @returns how many there were */
  cancelModel(name: ModelName, error: CorralError): Promise<number>
}
