import { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { Model, ModelList, Origin, StoredFormat } from './models.ts'
import type { Waiting } from './progress.ts'

export interface StoredFile {
  /** Relative to the variant's directory, with forward slashes. */
  path: string
  /** Bytes. */
  size: number
  /** 64 hex digits. */
  sha256: string
  role: 'model' | 'projector' | 'draft' | 'other'
}

/** One quantization of one model, on disk. A later revision is another object with another directory. */
export interface StoredVariant extends Model {
  format: StoredFormat
  origin: Origin
  /** Absolute path of the folder with `files`. Its folder `converted` belongs to the conversion. */
  directory: string
  files: StoredFile[]
}

export function hasFiles(model: Model): model is StoredVariant {
  return 'files' in model
}

/** @throws CorralError `unsupported_capability` for a model that a plugin provides without files */
export function requireFiles(model: Model): StoredVariant {
  if (hasFiles(model)) return model
  const message =
    `Model "${model.publicName}" has no files here: the plugin "${model.origin.from}" provides it. ` +
    'Use a model that is stored on this machine.'
  throw new CorralError('unsupported_capability', message, { param: 'model' })
}

export interface ImportRequest {
  /** Absolute path of a model's file (its other files are found beside it) or of a model folder. */
  path: string
  /** The model's name. Its variant, if given, overrides the label read from the file. */
  name: ModelName
  /** Absent for corral and plugins. Over the network, only files below `storage.import_roots` can be imported. */
  caller?: Caller
}

export interface Storage extends ModelList<StoredVariant> {
  /**
   * Registers local files, by reflink or hard link if possible. If a variant with the same content exists, it is
   * returned. Progress is in bytes.
   * @throws CorralError `path_not_allowed` for paths that the caller may not import, whether or not they exist;
   * `invalid_request` that says what is wrong with the files, `model_exists`, `insufficient_storage`
   */
  import(request: ImportRequest, waiting?: Waiting): Promise<StoredVariant>
  /** Removes a variant or model; its files after the `onRemove` listeners. @throws CorralError `model_not_found` */
  remove(name: ModelName): Promise<StoredVariant[]>
  setDefault(name: ModelName): Promise<StoredVariant>
  /**
   * Exchanges the files of two variants of a model, at once: each label then names the other's files. Engines that run
   * keep theirs. @returns the variant with this name. @throws CorralError `model_not_found`
   */
  exchange(name: ModelName, label: string): Promise<StoredVariant>
  /**
   * Called after variants have left the index and before their files are deleted. The removal waits for it.
   * @returns removes the listener
   */
  onRemove(listener: (variants: StoredVariant[]) => Promise<void>): () => void
  /**
   * Refuses files that differ from their recorded digests, if the setting `storage.trust` asks for that. Files that were
   * compared are read again only after they have changed. @throws CorralError `load_failed`
   */
  requireTrusted(variant: StoredVariant, waiting?: Waiting): Promise<void>
  /** Keeps this revision's files until the returned function is called, even if a newer revision replaces it. */
  hold(variant: StoredVariant): () => void
}
