import type { ModelName, RequestedName } from '../models/model-name.ts'

/** `base`: it has no chat template, and is made for completing text. */
export type Capability =
  | 'completion'
  | 'base'
  | 'tools'
  | 'thinking'
  | 'vision'
  | 'audio'
  | 'insert'
  | 'embedding'
  | 'rerank'

/** What a model's own files say about it, or the plugin that brings it. */
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

/** What was set for a model when it was made of another one, as Ollama's Modelfile does. */
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
  /** The label that it was made under, or Ollama's tag that it was imported with, if its name had one. */
  tag?: string
}

/** Where a model came from; one without files from the plugin that `from` names. */
export type ModelOrigin = Omit<Origin, 'kind'> & { kind: Origin['kind'] | 'plugin' }

/** A model that requests can name: one variant of a model in storage, or what a plugin brings. */
export interface Model {
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
  /** `gguf`, `safetensors`, or the name of the plugin that brings it. */
  format: string
  /** Bytes of all files. */
  size: number
  /** 64 hex digits, made of the files' digests. */
  digest: string
  /** ISO 8601 UTC with milliseconds. */
  modifiedAt: string
  origin: ModelOrigin
  metadata: ModelMetadata
  defaults?: ModelDefaults
}

/** What a plugin says of a model that it brings. */
export interface BroughtModel {
  /** `owner/name`, or `owner/name:label`; the label is `latest` where it has none. */
  name: string
  capabilities: Capability[]
  /** Tokens of context. */
  contextLength?: number
  /** Bytes of its files, wherever they are. APIs show 0 if it is absent, and people an unknown size. */
  readonly size?: number
  /** More of what is known of it. */
  metadata?: Partial<ModelMetadata>
}

/** Models that a plugin brings without files: of a server elsewhere, of a few lines of its own. */
export interface ModelSource {
  /** The plugin's; unique among sources. */
  readonly name: string
  /**
   * The models that there are now. Asked often, so that it must answer from memory, with the same objects. A list that is
   * frozen is looked at once: give the same one for as long as nothing changes.
   */
  models(): readonly BroughtModel[]
}

/** Models by their names. */
export interface ModelList<Listed extends Model = Model> {
  /** All variants of all models, the default one of each first. Answered from memory. */
  list(): Listed[]
  /** The variants of one model, the default one first; empty when it is absent. */
  variants(name: ModelName): Listed[]
  /** By its name. */
  find(name: ModelName): Listed | undefined
  /** As `find`. @throws CorralError `model_not_found`, naming the variants there are when only the label is unknown. */
  get(name: ModelName): Listed
}

/** Another name of a model: `config.yaml` gives it, or it was pulled or imported by it. */
export interface ModelAlias {
  /** As it is written there: `owner/name`, or only a name; `name:tag` where it was pulled by it. */
  alias: string
  model: Model
}

/** A list of names beside those of models: what a short name means, where nothing here is called so. */
export type KnownNames = (name: RequestedName) => ModelName | undefined

/**
 * All models that requests can name. A name that is in storage goes before one of a plugin. Those who ask for a caller
 * use `catalogFor`, whose models are those that this caller may use.
 */
export interface Catalog extends ModelList {
  /**
   * The model that a name means, which may be an alias or lack its owner; undefined where it means none or several.
   * @param allowed the models that the caller's key allows; all where absent
   * @throws CorralError `forbidden_model` for a name with an owner that the key does not allow
   */
  find(name: RequestedName, allowed?: readonly string[]): Model | undefined
  /** As `find`. @throws CorralError `model_not_found`, saying what may have been meant and what to do next */
  get(name: RequestedName, allowed?: readonly string[]): Model
  /** The aliases of models that are here and the listed names, without those whose name a model really has. */
  aliases(allowed?: readonly string[]): ModelAlias[]
  /**
   * Adds the models of a plugin, which may change over time. A model whose name another one has is left out, and logged.
   * @returns removes them. @throws Error when its name is taken or a model's is invalid
   */
  add(source: ModelSource): () => void
  /**
   * The names by which lists have this variant beside its own, the latest last: Ollama's, by which it was pulled or
   * imported. They are aliases too.
   */
  listedNames(model: Pick<Model, 'key'>, allowed?: readonly string[]): string[]
  /**
   * Adds names that a plugin knows.
   * @param listed those of them, each with a tag, that lists have, by the keys of the variants that they stand for
   * @returns removes them
   */
  addNames(names: KnownNames, listed?: () => ReadonlyMap<string, readonly string[]>): () => void
}
