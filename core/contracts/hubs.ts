import type { Caller } from './callers.ts'
import type { StoredFormat } from './models.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

/** A file in a hub's listing, with at least one digest if the hub has any. */
export interface HubFile {
  /** In the repository, with forward slashes. Checked: relative, without `..`, control characters or reserved names. */
  path: string
  /** Bytes. Undefined if the hub reports the size only with the location. */
  size: number | undefined
  /** 64 hex digits in lower case. */
  sha256?: string | undefined
  /** SHA-1 of git's blob (`blob <size>\0` before the bytes), 40 hex digits in lower case. */
  gitSha1?: string | undefined
}

/** A repository at one revision. Plain data: it is stored while its files are downloaded. */
export interface HubRepository {
  hub: string
  /** In the hub's own spelling: `owner/name`, as `Hub.parse` returns it, or an address for files outside of hubs. */
  id: string
  /** Identifies the content permanently: a commit, or a fingerprint of the listing if the hub has no commits. */
  revision: string
  /** Address of its web page, without credentials. */
  address: string
  /** The hub requires agreement to terms first. */
  gated: boolean
  files: HubFile[]
  /** The commit's page of the folder with its files, with a final slash, and a template that the hub has read in one. */
  page?: { folder: string; chatTemplate?: string }
  /** Private data of the hub, such as a server's address. */
  more?: Record<string, string>
}

/** The current download address of a file. Never stored: it may contain a signature or a token. */
export interface FileLocation {
  url: string
  /** Sent with each download request. */
  headers: Record<string, string>
  /** Proxy to use; empty means none, undefined uses HTTPS_PROXY, HTTP_PROXY and NO_PROXY. */
  proxy?: string
  /** Set if a client chose the address: as in `HubRequest`. */
  privateAddresses?: readonly string[]
  /** When it expires, in epoch milliseconds, if known. */
  expiresAt?: number
  /** Size and digest, if the hub reports them with the location and not in the listing. */
  size?: number | undefined
  sha256?: string | undefined
  /** Identifies the content at this address (a strong ETag); for files without a digest. */
  identity?: string | undefined
}

export interface HubRequest {
  /** `owner/name`, or an address for hubs that accept one. */
  id: string
  /** Branch, tag or commit; undefined is the default branch. */
  revision?: string
  /** Private hosts, addresses and networks (`*` is all) that an address of the client may lead to. */
  privateAddresses?: readonly string[]
}

/** A search result. Texts and numbers are checked; missing information is absent. */
export interface HubMatch {
  /** `owner/name` in the hub's own spelling. */
  id: string
  /** Number of downloads, as the hub counts them. */
  downloads?: number | undefined
  likes?: number | undefined
  /** ISO 8601. */
  updatedAt?: string | undefined
  /** Such as `apache-2.0`. */
  license?: string | undefined
  /** Its tasks, such as `text-generation`. */
  tasks: string[]
  /** The hub requires agreement to terms first. */
  gated: boolean
  /** Formats of its weights, if the search reports them. */
  formats: StoredFormat[]
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
   * Parses a name after its prefix, for hubs whose names do not have the form `owner/name:variant@revision`.
   * @returns the hub's own `id`, and `owner/name` to store the model under; undefined if it is not a name
   */
  parse?(text: string): { id: string; name: string; revision?: string; variant?: string } | undefined
  /** Lists a repository. @throws CorralError `repo_not_found`, `hub_forbidden`, `hub_unreachable`, … */
  repository(request: HubRequest, waiting: Waiting): Promise<HubRepository>
  /** Finds popular repositories by words in their names, those with GGUF files first. @throws as `repository` */
  search?(words: string, limit: number, waiting: Waiting): Promise<HubMatch[]>
  /** A new location of a file: the first one, or when that stops working. @throws as `repository` */
  locate(
    repository: HubRepository,
    file: HubFile,
    signal: AbortSignal,
    privateAddresses?: readonly string[]
  ): Promise<FileLocation>
}

/** The service `downloads`. `downloads.ts` adds the pulls, which the built-in plugins use. */
export interface Downloads {
  /** Adds a hub. @returns removes it. @throws Error if its name or a prefix is taken or ambiguous */
  addHub(hub: Hub): () => void
  hubs(): readonly Hub[]
  /**
   * Pulls a model like `corral pull`, unless it is stored.
   * @param options.as name to store it under; required for addresses without a name
   * @returns once it is stored
   * @throws CorralError `repo_not_found`, `hub_unreachable`, `insufficient_storage`, `pull_cancelled`, …
   */
  pullModel(model: string, options?: Waiting & { as?: string; caller?: Pick<Caller, 'turn'> }): Promise<StoredVariant>
}
