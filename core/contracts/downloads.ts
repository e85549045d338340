import type { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

// ---- hubs ----------------------------------------------------------------------------------------------------------

/** A file as a hub lists it. At least one digest is there for whatever the hub knows one of. */
export interface HubFile {
  /** In the repository, with forward slashes. Checked: relative, without `..`, control characters or reserved names. */
  path: string
  /** Bytes. Undefined where the hub does not say before the file is asked for. */
  size: number | undefined
  /** 64 hex digits in lower case. */
  sha256?: string
  /** SHA-1 of git's blob (`blob <size>\0` before the bytes), 40 hex digits in lower case. */
  gitSha1?: string
}

/** What a hub has under a name, at one revision. Plain data: it is kept in a file while its files are fetched. */
export interface HubRepository {
  /** Name of the hub. */
  hub: string
  /** As the hub itself spells it: `owner/name`, or an address for what lies at none. */
  id: string
  /** Names the content for good: a commit, or a fingerprint of the listing where the hub has none. */
  revision: string
  /** Where people see it; without credentials. */
  address: string
  /** The hub wants the reader to agree to terms first. */
  gated: boolean
  files: HubFile[]
  /** What only the hub itself understands, such as a server's address. */
  more?: Record<string, string>
}

/** Where the bytes of a file can be had at the moment. Never stored: it may carry a signature or a token. */
export interface FileLocation {
  url: string
  /** Sent with each request for bytes. */
  headers: Record<string, string>
  /** Proxy to go through; empty is none, undefined heeds HTTPS_PROXY, HTTP_PROXY and NO_PROXY. */
  proxy?: string
  /** When it stops being valid, in epoch milliseconds, as far as that is known. */
  expiresAt?: number
  /** What the hub says of the file when it is asked for, where the listing did not. */
  size?: number
  sha256?: string
  /** Names the content at this place (a strong ETag); for files that have no digest. */
  identity?: string
}

export interface HubRequest {
  /** `owner/name`, or an address for hubs that take such. */
  id: string
  /** Branch, tag or commit; undefined is the default branch. */
  revision?: string
}

/** A place that models come from. Built-in and outside ones are added alike, with `downloads.addHub`. */
export interface Hub {
  /** Such as `huggingface`; recorded with each model from it. */
  readonly name: string
  /** Such as `Hugging Face`. */
  readonly title: string
  /** What may stand before a name to ask for this hub, with its separator: `hf:`, `hf.co/`, `https://huggingface.co/`. */
  readonly prefixes: readonly string[]
  /**
   * Finds a repository and lists all its files.
   * @throws CorralError `repo_not_found`, `hub_forbidden`, `hub_unreachable` or `hub_rate_limited`, each with a sentence
   * that says what to do
   */
  repository(request: HubRequest, waiting: Waiting): Promise<HubRepository>
  /**
   * Where a file's bytes are now. Asked once for each file and again when the place stops working; gives a fresh answer
   * each time.
   * @throws as `repository`
   */
  locate(repository: HubRepository, file: HubFile, signal: AbortSignal): Promise<FileLocation>
}

// ---- pulls ---------------------------------------------------------------------------------------------------------

/** What a client wants to have. */
export interface PullRequest {
  /** As it was written: `[hf:|csghub:|modelscope:|…]owner/name[:variant][@revision]`, or an address. */
  model: string
  /** Name to store it under; needed for addresses that carry none. */
  as?: string
}

/** A file that a pull fetches. */
export interface PlannedDownload {
  /** In the repository. */
  path: string
  /** Its name in the store. */
  storedPath: string
  role: 'model' | 'projector' | 'other'
  /** Bytes; undefined where unknown before the transfer. */
  size: number | undefined
  sha256?: string
  gitSha1?: string
}

/** What a pull would fetch and why. */
export interface PullPlan {
  name: ModelName
  /** Label that the variant gets, such as `Q4_K_M`. */
  label: string
  format: 'gguf' | 'safetensors'
  repository: Omit<HubRepository, 'files'>
  files: PlannedDownload[]
  /** Bytes of all files whose size is known. */
  size: number
  /** One sentence on why these files. */
  reason: string
  /** What else could be had, the best first: labels with their sizes in bytes. */
  choices: { label: string; size: number }[]
  memory: { required: number; available: number; fits: boolean }
  disk: { required: number; available: number; fits: boolean }
  /** What people should know before: it does not fit, it needs conversion, … */
  warnings: string[]
  /** The variant with exactly these files is stored already. */
  present: boolean
}

export type PullState = 'downloading' | 'storing' | 'paused' | 'failed'

/** How far one file is. */
export interface FileProgress {
  path: string
  completed: number
  total: number
}

/** A pull that is going on or waits to be continued. */
export interface PullRecord {
  id: string
  /** `owner/name:label`, as it will be listed. */
  model: string
  state: PullState
  /** Goes on without anybody watching. */
  detached: boolean
  origin: string
  createdAt: string
  /** Bytes on disk and in all. */
  completed: number
  total: number
  /** Bytes a second in the last seconds; 0 when it does not run. */
  speed: number
  files: FileProgress[]
  /** Why it is paused or failed. */
  reason?: string
}

/** What a watcher of a pull is told: the newest state of single files. */
export type OnPullEvent = (files: FileProgress[]) => void

/** One pull under way, shared by all who asked for it. */
export interface Pull {
  readonly plan: PullPlan
  record(): PullRecord
  /**
   * Settles when the model is stored. `onEvent` gets the state of all files at once, then what changes, at most ten
   * times a second and file, and each file at its end. A watcher whose signal is aborted leaves; when the last one has
   * left, the pull pauses after some seconds unless it is detached.
   * @throws CorralError that ended the pull; the signal's reason
   */
  watch(onEvent: OnPullEvent, signal: AbortSignal): Promise<StoredVariant>
}

export interface Downloads {
  addHub(hub: Hub): void
  hubs(): readonly Hub[]
  /**
   * Finds out what a pull would fetch, asking the hub.
   * @throws CorralError `invalid_model_name`, `repo_not_found`, `hub_forbidden`, `hub_unreachable`, `hub_rate_limited`,
   * `unsupported_capability` where the repository has nothing to run, `model_exists` where the name came from elsewhere
   */
  plan(request: PullRequest, waiting: Waiting): Promise<PullPlan>
  /**
   * Starts what was planned, continues it, or joins it. Undefined when the plan is present already.
   * @throws CorralError `insufficient_storage`
   */
  pull(plan: PullPlan, options: { detached: boolean }): Promise<Pull | undefined>
  /** All pulls that are not done, oldest first. */
  list(): PullRecord[]
  /** @param id a pull's id, or the name of the model it fetches. @throws CorralError `model_not_found` */
  pause(id: string): Promise<PullRecord>
  /** Continues without anybody watching. @throws as `pause` */
  resume(id: string): Promise<PullRecord>
  /** Ends it and removes what was fetched; its watchers get `pull_cancelled`. @throws as `pause` */
  cancel(id: string): Promise<void>
  /** Cancels all pulls of a model (one variant's for a tagged name); gives how many there were. */
  cancelModel(name: ModelName, error: CorralError): Promise<number>
}
