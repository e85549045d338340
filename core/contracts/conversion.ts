import type { Progress, Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

/** A GGUF that was made from a SafeTensors model: a cache beside the model's files, deleted with them. */
export interface ConvertedModel {
  /** In lower case, such as `f16` or `q4_k_m`. */
  dtype: string
  /** Absolute path of the GGUF. */
  modelPath: string
  /** Absolute path of the projector's GGUF, which models for images and sound have. */
  projectorPath?: string
  /** Bytes of all its files. */
  size: number
  /** ISO 8601 UTC with milliseconds. */
  createdAt: string
  /** Version of the converter that made it. */
  converter: string
}

/** Conversions since the start. Calls that found an existing result do not count. */
export interface ConversionCounts {
  readonly running: number
  readonly finished: number
  readonly failed: number
}

/** A conversion in progress, or one that waits for another conversion of its model. */
export interface RunningConversion {
  readonly variant: StoredVariant
  readonly dtype: string
  readonly progress: Progress
}

export interface Conversion {
  /** The canonical name of a type, in lower case. @throws CorralError `invalid_option` that lists the types */
  requireDtype(dtype: string): string
  /**
   * The GGUF of a SafeTensors variant in a type, converted now if it does not exist. Callers of one model and type
   * share the work, which is cancelled when the last of them has left.
   * @throws CorralError `conversion_failed`, `insufficient_storage`, `runtime_missing`; `conversion_not_installed` if
   * `conversion.install` is `ask` and the packages for conversions are not installed
   */
  convert(variant: StoredVariant, dtype: string, waiting: Waiting): Promise<ConvertedModel>
  /**
   * Writes a GGUF with weights of another type.
   * @param shards the files of its weights: the path of each, and the name under which llama.cpp looks for it
   * @param target path of the new file; if this fails, no file is left there
   * @throws CorralError `invalid_option`, `invalid_request` if the weights are quantized already, `runtime_missing`,
   * `conversion_failed`, `insufficient_storage`
   */
  quantize(
    shards: readonly { source: string; path: string }[],
    target: string,
    dtype: string,
    waiting: Waiting
  ): Promise<void>
  /** Whether the converter supports a parsed config.json. Undefined if the file or the converter is missing. */
  supports(config: unknown): Promise<{ architecture: string | undefined; supported: boolean | undefined }>
  /** Installs the packages for conversions once. @throws CorralError `conversion_failed`, `runtime_missing`, … */
  install(waiting: Waiting): Promise<void>
  counts(): ConversionCounts
  running(): RunningConversion[]
  list(variant: StoredVariant): Promise<ConvertedModel[]>
  /** Deletes one conversion. @throws CorralError `model_not_found` if there is no conversion to this type */
  remove(variant: StoredVariant, dtype: string): Promise<void>
}
