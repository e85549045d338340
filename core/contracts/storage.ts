import { CorralError } from '../errors.ts'
import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { Model, ModelList, Origin } from './models.ts'
import type { Waiting } from './progress.ts'

export interface StoredFile {
  /** Relative to the variant's directory, with forward slashes. */
  path: string
  /** Bytes. */
  size: number
  /** 64 hex digits. */
  sha256: string
  role: 'model' | 'projector' | 'other'
}

/** One quantization of one model, on disk. A later revision of it is another object with another directory. */
export interface StoredVariant extends Model {
  format: 'gguf' | 'safetensors'
  origin: Origin
  /** Absolute path of the folder with `files`. Its folder `converted` belongs to the conversion. */
  directory: string
  files: StoredFile[]
}

/** Whether a model has files on this machine. */
export function hasFiles(model: Model): model is StoredVariant {
  return 'files' in model
}

/** @throws CorralError `unsupported_capability` for a model that a plugin brings without files */
export function requireFiles(model: Model): StoredVariant {
  if (hasFiles(model)) return model
  throw new CorralError(
    'unsupported_capability',
    `Model "${model.publicName}" has no files here: the plugin "${model.origin.from}" brings it. ` +
      'Use a model that is stored on this machine.',
    { param: 'model' }
  )
}

export interface ImportRequest {
  /** Absolute path of a GGUF file (its other shards and projector are found beside it) or of a model folder. */
  path: string
  /** Under which name; its variant, if given, overrides the label read from the file. */
  name: ModelName
  /**
   * Who asks for it: over the network only what lies below `storage.import_roots` is imported. Absent where corral or
   * a plugin itself wants it.
   */
  caller?: Caller
}

export interface Storage extends ModelList<StoredVariant> {
  /**
   * Registers files that are on disk, by reflink or hard link where possible. The same content again is the present
   * variant. Progress counts bytes.
   * @throws CorralError `path_not_allowed` for what the caller may not import, whether it is there or not;
   * `invalid_request` saying what is wrong with it, `model_exists`, `insufficient_storage`
   */
  import(request: ImportRequest, waiting?: Waiting): Promise<StoredVariant>
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
