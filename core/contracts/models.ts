import type { ModelName, RequestedName } from '../models/model-name.ts'

/** A name of the core, or any name that a plugin adds. */
export type OpenName<Known extends string> = Known | (string & Record<never, never>)

/** `base`: it has no chat template, and completes text. Other names are operations, such as `speak`. */
export type Capability = OpenName<
  'completion' | 'base' | 'tools' | 'thinking' | 'vision' | 'audio' | 'insert' | 'embedding' | 'rerank'
>

/**
 * Formats of models with files. Of `ggml` files only models that recognize speech are supported, and of `onnx` files only
 * voices. A `checkpoint` is an image model in one SafeTensors file.
 */
export const STORED_FORMATS = ['gguf', 'safetensors', 'ggml', 'onnx', 'checkpoint'] as const
export type StoredFormat = (typeof STORED_FORMATS)[number]

/** Metadata of a model, from its files or from the plugin that provides it. */
export interface ModelMetadata {
  architecture?: string
  /** Tokens the model was trained for. */
  contextLength?: number
  embeddingLength?: number
  /** Number of weights. */
  parameters?: number
  /** Label such as `Q4_K_M`. */
  quantization?: string
  chatTemplate?: string
  capabilities: Capability[]
  /** Names of the voices of a model that speaks, the usual one first. */
  voices?: string[]
  /** The metadata keys and values without arrays, as `model_info` of `/api/show` returns them. */
  info: Record<string, string | number | boolean | null>
}

/** Defaults that a model was created with, as by Ollama's Modelfile. */
export interface ModelDefaults {
  /** Options that neither the request nor `config.yaml` sets, including load options. */
  options?: Record<string, unknown>
  /** System message for conversations without one. */
  system?: string
  /** Messages at the start of every conversation. */
  messages?: { role: string; content: string }[]
  /** Jinja chat template that replaces the model's own. */
  template?: string
  license?: string
}

export interface Origin {
  /** made: from another model, or from files that a client sent. */
  kind: 'bundled' | 'import' | 'hub' | 'made'
  /** A path, a hub and its name there (`huggingface:owner/name`, without credentials), or the original model. */
  from: string
  /** Identifies the content at a hub: a commit. */
  revision?: string
  /** The label that it was made under, or Ollama's tag that it was imported with, if its name had one. */
  tag?: string
}

/** Where a model came from; for a model without files, the plugin is in `from`. */
export type ModelOrigin = Omit<Origin, 'kind'> & { kind: Origin['kind'] | 'plugin' }

/** A model that requests can name: a variant of a stored model, or a model of a plugin. */
export interface Model {
  model: ModelName
  /** Quantization label in the case it was stored with, such as `Q8_0`. */
  label: string
  isDefault: boolean
  /** `owner/name` for the default variant, `owner/name:LABEL` for others. */
  publicName: string
  /** `owner/name:label` in lower case: the same for all revisions of this variant. */
  key: string
  /** Identifies exactly these files. Another import under the same name gets another revision. */
  revision: string
  /** `gguf`, `safetensors`, or the name of the plugin that provides it. */
  format: string
  /** Bytes of all files. */
  size: number
  /** 64 hex digits, computed from the files' digests. */
  digest: string
  /** ISO 8601 UTC with milliseconds. */
  modifiedAt: string
  origin: ModelOrigin
  metadata: ModelMetadata
  defaults?: ModelDefaults
}

/** A model that a plugin provides. */
export interface BroughtModel {
  /** `owner/name`, or `owner/name:label`; the label is `latest` if missing. */
  name: string
  capabilities: Capability[]
  /** Tokens of context. */
  contextLength?: number
  /** Bytes of its files, wherever they are. If absent, APIs show 0, and human-readable output an unknown size. */
  readonly size?: number
  /** Other known metadata. */
  metadata?: Partial<ModelMetadata>
}

/** Models that a plugin provides without files: models of other servers, or implemented by the plugin. */
export interface ModelSource {
  /** The plugin's name, unique among sources. */
  readonly name: string
  /** The current models, from memory. A frozen list is read once: return the same while nothing changes. */
  models(): readonly BroughtModel[]
}

/** A list of models that can be searched by name. */
export interface ModelList<Listed extends Model = Model> {
  /** Lists all variants of all models, the default variant of each model first. Answered from memory. */
  list(): Listed[]
  /** The variants of one model, the default one first; empty if there is no such model. */
  variants(name: ModelName): Listed[]
  find(name: ModelName): Listed | undefined
  /** As `find`. @throws CorralError `model_not_found`, which lists the variants if only the label is unknown */
  get(name: ModelName): Listed
}

/** Another name of a model, from `config.yaml` or from its pull or import. */
export interface ModelAlias {
  /** As written: `owner/name`, or only a name. `name:tag` if it was pulled by that name. */
  alias: string
  model: Model
}

/** Resolves additional names: the model that a short name refers to if no local model has it. */
export type KnownNames = (name: RequestedName) => ModelName | undefined

/** All models. A stored model's name wins over a plugin's. `catalogFor` contains what a caller may use. */
export interface Catalog extends ModelList {
  /**
   * Resolves a name, which may be an alias or lack its owner; undefined if it matches no model or several.
   * @param allowed the models that the caller's key allows; absent for all
   * @throws CorralError `forbidden_model` for a name with an owner that the key does not allow
   */
  find(name: RequestedName, allowed?: readonly string[]): Model | undefined
  /** As `find`. @throws CorralError `model_not_found`, with similar names and the next step */
  get(name: RequestedName, allowed?: readonly string[]): Model
  /** The aliases of local models and the listed names, except names that a model really has. */
  aliases(allowed?: readonly string[]): ModelAlias[]
  /** Adds a plugin's models, except those whose names are taken. @returns removes them. @throws Error if invalid */
  add(source: ModelSource): () => void
  /** Ollama's names by which this variant was pulled or imported, the latest last. They are aliases too. */
  listedNames(model: Pick<Model, 'key'>, allowed?: readonly string[]): string[]
  /** Adds names that a plugin knows, and names for lists by keys of variants. @returns removes them */
  addNames(names: KnownNames, listed?: () => ReadonlyMap<string, readonly string[]>): () => void
}
