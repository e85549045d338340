import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import type { FastifyPluginAsync, FastifyRequest } from 'fastify'
import type { Adoption } from './adoption.ts'
import type { Conversion } from './conversion.ts'
import type { Downloads } from './downloads.ts'
import type { CorralError } from './errors.ts'
import type { HardwareService } from './hardware.ts'
import type { ModelName } from './model-name.ts'
import type { EngineSettings } from './model-settings.ts'
import type { LoadOptions } from './options.ts'
import type { OnProgress, Progress } from './progress.ts'
import type { Build, MemoryUse, Runtimes } from './runtimes.ts'

/**
 * The services that plugins offer each other, by the name they are reached under. An outside plugin that offers one of
 * its own extends this interface by declaration merging.
 */
export interface Services {
  storage: Storage
  downloads: Downloads
  hardware: HardwareService
  runtimes: Runtimes
  conversion: Conversion
  scheduler: Scheduler
  adoption: Adoption
  access: Access
  nativeApi: NativeApi
}
export type ServiceName = keyof Services & string

/** Waiting work that a caller can follow and call off. */
export interface Waiting {
  signal?: AbortSignal
  onProgress?: OnProgress
}

// ---- storage -------------------------------------------------------------------------------------------------------

export interface StoredFile {
  /** Relative to the variant's directory, with forward slashes. */
  path: string
  /** Bytes. */
  size: number
  /** 64 hex digits. */
  sha256: string
  role: 'model' | 'projector' | 'other'
}

export type Capability = 'completion' | 'tools' | 'thinking' | 'vision' | 'audio' | 'insert' | 'embedding' | 'rerank'

/** What a model's own files say about it; read once at import and kept in the manifest. */
export interface ModelMetadata {
  architecture?: string
  /** Tokens the model was trained for. */
  contextLength?: number
  embeddingLength?: number
  /** Count of weights. */
  parameters?: number
  /** Label such as `Q4_K_M`. */
  quantization?: string
  chatTemplate?: string
  capabilities: Capability[]
  /** The metadata keys and values without arrays, as `/api/show` gives them under `model_info`. */
  info: Record<string, string | number | boolean | null>
}

/** What somebody who made a model of another one laid down for it, as Ollama's Modelfile does. */
export interface ModelDefaults {
  /** Options that hold where neither the request nor `config.yaml` gives them; load options too. */
  options?: Record<string, unknown>
  /** System message of conversations that have none. */
  system?: string
  /** Messages that every conversation begins with. */
  messages?: { role: string; content: string }[]
  /** Jinja chat template in the place of the model's own. */
  template?: string
  license?: string
}

export interface Origin {
  /** made: of another model, or of files that a client sent. */
  kind: 'bundled' | 'import' | 'hub' | 'made'
  /**
   * Where it came from: a path, a hub and what it has the model under (`huggingface:owner/name`), or the model that it
   * was made of; no credentials.
   */
  from: string
  /** Names the content at a hub: a commit. */
  revision?: string
  /** The label that it was made under, where the name that it was given had one. */
  tag?: string
}

/** One quantization of one model, as it lies on disk. A later revision of it is another object with another directory. */
export interface StoredVariant {
  model: ModelName
  /** Quantization label in the case it was stored with, such as `Q8_0`. */
  label: string
  isDefault: boolean
  /** `owner/name` for the default variant, `owner/name:LABEL` for others. */
  publicName: string
  /** `owner/name:label` in lower case: the same for all revisions of this variant. */
  key: string
  /** Names these very files; another import under the same name gives another revision. */
  revision: string
  format: 'gguf' | 'safetensors'
  /** Absolute path of the folder that holds `files`. What lies below its folder `converted` is the conversion's. */
  directory: string
  files: StoredFile[]
  /** Bytes of all files. */
  size: number
  /** 64 hex digits, made of the files' digests. */
  digest: string
  /** ISO 8601 UTC with milliseconds. */
  modifiedAt: string
  origin: Origin
  metadata: ModelMetadata
  defaults?: ModelDefaults
}

export interface ImportRequest {
  /** Absolute path of a GGUF file (its other shards and projector are found beside it) or of a model folder. */
  path: string
  /** Under which name; its variant, if given, overrides the label read from the file. */
  name: ModelName
}

/** A file that is on this disk and is to become part of a model. */
export interface AdoptedFile {
  /** Absolute path of a regular file. */
  source: string
  /** Its name in the store, relative, with forward slashes. */
  path: string
  role: StoredFile['role']
  /** 64 hex digits, where they were just computed from its bytes: it is not read for them again. */
  sha256?: string
  /** 64 hex digits that its bytes are said to have: the file is refused as damaged when they have others. */
  claimedSha256?: string
}

export type OnCopied = (file: { path: string; role: StoredFile['role'] }) => void

/** Files that somebody chose already, and whose names need not tell what they are. */
export interface AdoptRequest {
  name: ModelName
  format: 'gguf' | 'safetensors'
  /** Label that the variant gets; read from the files where absent. */
  label?: string
  origin: Origin
  /** Model files first, in the order of their shards. */
  files: AdoptedFile[]
  /** Equal files with other defaults are another model. Those of the variant that is replaced stay where absent. */
  defaults?: ModelDefaults
}

export interface Storage {
  /** All variants, the default one of each model first. Answered from memory. */
  list(): StoredVariant[]
  /** The variants of one model, the default one first; empty when it is absent. */
  variants(name: ModelName): StoredVariant[]
  /** By its name or an alias that `config.yaml` gives it. */
  find(name: ModelName): StoredVariant | undefined
  /** As `find`. @throws CorralError `model_not_found`, naming the variants there are when only the label is unknown. */
  get(name: ModelName): StoredVariant
  /**
   * Registers files that are on disk, by reflink or hard link where possible. The same content again is the present
   * variant. Progress counts bytes.
   */
  import(request: ImportRequest, waiting?: Waiting): Promise<StoredVariant>
  /**
   * Makes files a variant, by link where possible; they stay where they are. Their headers are read, so that what is
   * damaged never becomes a model. `onCopied` is told of each file that had to be copied. What is `made` takes the place
   * of what was made under its name, and that of a model with the same files, which keeps its origin.
   * @throws CorralError `invalid_request` saying what is wrong with them, `model_exists`, `insufficient_storage`
   */
  adopt(request: AdoptRequest, waiting?: Waiting & { onCopied?: OnCopied }): Promise<StoredVariant>
  /**
   * Removes a variant (tagged name) or all variants (bare name): gone for new requests at once, files after every
   * `onRemove` listener has settled.
   * @throws CorralError `model_not_found`
   */
  remove(name: ModelName): Promise<StoredVariant[]>
  setDefault(name: ModelName): Promise<StoredVariant>
  /** Called when variants have left the index and before their files go; the removal waits for it. */
  onRemove(listener: (variants: StoredVariant[]) => Promise<void>): void
  /** Keeps this revision's files until the returned function is called, even when a newer revision replaces it. */
  hold(variant: StoredVariant): () => void
}

// ---- engines -------------------------------------------------------------------------------------------------------

export type EngineMode = 'chat' | 'embedding' | 'rerank'

/** How much an engine may take of what it would take more and more of. */
export interface EngineBounds {
  /** Bytes of the machine's memory for the states of earlier prompts (`--cache-ram`). */
  promptCache: number
  /** Most checkpoints of each slot, which models with windows or states have (`--ctx-checkpoints`). */
  checkpoints: number
  /** Bytes of each of the build's devices that are left free when layers are placed by themselves (`--fit-target`). */
  deviceMargins?: readonly number[]
}

/** What an engine is started for. */
export interface EngineSpec {
  /** The name the engine reports. */
  alias: string
  mode: EngineMode
  variant: StoredVariant
  /** Absolute path of the (first) model file, converted where that was needed. */
  modelPath: string
  projectorPath?: string
  options: LoadOptions
  /** What `config.yaml` says of the model beyond its options; files in it are absolute. */
  settings?: EngineSettings
  /** Folder that the engine may save its slots' caches in (`--slot-save-path`); none are saved where absent. */
  slotFolder?: string
  /** llama-server's defaults and corral's own hold where absent. */
  bounds?: EngineBounds
}

export interface EngineExit {
  /** Exit code, or null when a signal ended it. */
  code: number | null
  signal: string | null
  /** Whether corral asked for it. */
  expected: boolean
  /** Why it ended, where corral did not ask for it: `engine_crashed` with `details.cause`. */
  failure?: CorralError
}

export interface EngineRequest {
  method: 'GET' | 'POST'
  path: string
  body?: string | Buffer
  headers?: Record<string, string>
  signal: AbortSignal
}

export interface EngineResponse {
  status: number
  headers: Record<string, string | string[] | undefined>
  body: Readable
}

/** One running inference server, in this process's care or on another machine. */
export interface Engine {
  readonly id: string
  readonly spec: EngineSpec
  /** Tokens of context that each slot really has. */
  readonly contextSize: number
  readonly slots: number
  /** Bytes the engine holds in each memory pool, as it reports itself; absent where unknown. */
  readonly memory: MemoryUse | undefined
  /** The build it runs on. */
  readonly build: Build
  /** Flags that all engines get beside what the spec says. */
  readonly sharedArguments: readonly string[]
  readonly pid: number | undefined
  /** Settles when the engine has gone, whoever ended it. Never rejects. */
  readonly exited: Promise<EngineExit>
  /** Sends a request; resolves at the response's headers. No time limits of its own. */
  request(request: EngineRequest): Promise<EngineResponse>
  /** Ends it: politely first, then by force. Settles when it has gone. Open requests are cut. */
  stop(): Promise<void>
  /** The last lines it printed, oldest first. */
  logTail(): string[]
}

// ---- scheduler -----------------------------------------------------------------------------------------------------

export interface LeaseRequest extends Waiting {
  model: ModelName
  mode?: EngineMode
  /** The model is to be loaded and nothing more: no slot is taken. */
  loadOnly?: boolean
  /** How many slots it takes at once; 1 by default, all that there are where there are fewer. */
  slots?: number
  /** Only what the request itself gives. */
  options: Partial<LoadOptions>
  /** Milliseconds; negative is for ever, 0 unloads once nothing runs; absent leaves what holds. */
  keepAlive?: number
  signal: AbortSignal
}

/** The right to use a running engine, by one slot or as many as were asked for. */
export interface Lease {
  readonly engine: Engine
  readonly variant: StoredVariant
  /** Aborted when the caller's own signal is, or with a CorralError as reason when the engine is taken away. */
  readonly signal: AbortSignal
  /** Milliseconds this request waited for the model to load; 0 when it was loaded. */
  readonly loadDuration: number
  release(): void
}

export interface RunningModel {
  variant: StoredVariant
  mode: EngineMode
  engine: Engine
  options: LoadOptions
  /** When it is unloaded if no request comes or runs any longer; undefined is never. */
  expiresAt: Date | undefined
  running: number
  queued: number
}

export interface LoadingModel {
  variant: StoredVariant
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
   * (`mayRetry` is asked), it is tried once more on a fresh engine.
   */
  withLease<T>(request: LeaseRequest & { mayRetry?: () => boolean }, use: (lease: Lease) => Promise<T>): Promise<T>
  /**
   * Unloads a variant (the default one for a bare name) in all its modes: running requests end with `model_stopped`.
   * @throws CorralError `model_not_found` or `model_not_loaded`
   */
  stop(model: ModelName): Promise<void>
  /** Sets how long a loaded model stays without requests (milliseconds; see LeaseRequest). */
  keepAlive(model: ModelName, ms: number): void
  running(): RunningModel[]
  loading(): LoadingModel[]
}

// ---- access --------------------------------------------------------------------------------------------------------

/** Who may call. The address that the server itself listens on is known to it; other listeners ask. */
export interface Access {
  /**
   * Judges another address to listen on, as the server's own is judged.
   * @param setting the path of the setting that names it
   * @returns called with each request that comes by it before any route sees it
   * @throws ConfigError when everybody in the network could use the server and nobody has said that they may
   */
  admit(address: { host: string; port: number }, setting: string): (request: IncomingMessage) => void
}

// ---- REST surfaces -------------------------------------------------------------------------------------------------

export type Framing = 'sse' | 'ndjson'

/** How one mount of the native API reads and writes the names of models. */
export interface ModelNaming {
  /** A name as a request gives it. @throws CorralError `invalid_model_name` */
  parse(asked: unknown): ModelName
  /** The name that records show. */
  shown(variant: StoredVariant): string
  /**
   * What is deleted under this name, where that is not all that `parse` makes of it.
   * @throws CorralError `invalid_model_name`, `model_not_found`
   */
  doomed?(asked: string): ModelName
  /**
   * What a pull of this name asks hubs for; undefined when the model is here and came from none of them. What was asked
   * for itself, where absent.
   * @throws CorralError `repo_not_found` saying how models at hubs are named
   */
  atHub?(asked: string): string | undefined
}

/** The habits of one mount of the native API. */
export interface NativeMount {
  defaultFraming: Framing
  naming?: ModelNaming
  /** What `GET /version` tells; corral's own version where absent. */
  version?: string
  /** What `POST /show` tells as the Modelfile of a model; nothing where absent. */
  modelfile?: (variant: StoredVariant) => string
}

export interface NativeApi {
  /** The routes of the native API without a prefix, for mounting under another one with habits of its own. */
  routes(mount: NativeMount): FastifyPluginAsync
  /** The framing that a request wants streams in, at a mount that has this one by default. */
  framingOf(request: FastifyRequest, defaultFraming: Framing): Framing
}
