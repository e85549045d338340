import type { Progress, Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

/** A GGUF that was made of a SafeTensors model. It is a cache beside the model's own files, and goes with them. */
export interface ConvertedModel {
  /** In lower case, such as `f16` or `q4_k_m`. */
  dtype: string
  /** Absolute path of the GGUF. */
  modelPath: string
  /** Absolute path of the projector's GGUF; what sees or hears has one. */
  projectorPath?: string
  /** Bytes of all its files. */
  size: number
  /** ISO 8601 UTC with milliseconds. */
  createdAt: string
  /** Version of the converter that made it. */
  converter: string
}

/** Conversions since the start; present files that were found count for none. */
export interface ConversionCounts {
  readonly running: number
  readonly finished: number
  readonly failed: number
}

/** A conversion that goes on, or waits for another one of its model. */
export interface RunningConversion {
  readonly variant: StoredVariant
  readonly dtype: string
  readonly progress: Progress
}

export interface Conversion {
  /**
   * The name under which a type is kept: in lower case, and one for all of its spellings.
   * @throws CorralError `invalid_option` naming the types there are
   */
  requireDtype(dtype: string): string
  /**
   * The GGUF of a SafeTensors variant in a type: what is there, or made now. Callers of one model and type share the
   * work; it is called off when the last of them has left.
   * @throws CorralError `conversion_failed`, `insufficient_storage`, `runtime_missing`; `conversion_not_installed` if
   * `conversion.install` is `ask` and nobody installed what conversions need
   */
  convert(variant: StoredVariant, dtype: string, waiting: Waiting): Promise<ConvertedModel>
  /**
   * Writes a GGUF with weights of another type.
   * @param shards the files of its weights: where each is, and the name by which llama.cpp finds it beside the others
   * @param target of a file that is not there; nothing is left there where it fails
   * @throws CorralError `invalid_option`, `invalid_request` where the weights are quantized already, `runtime_missing`,
   * `conversion_failed`, `insufficient_storage`
   */
  quantize(
    shards: readonly { source: string; path: string }[],
    target: string,
    dtype: string,
    waiting: Waiting
  ): Promise<void>
  /**
   * Whether the converter supports a model, by the architecture in its parsed config.json.
   * @returns `supported` is undefined if the converter is not here yet or config.json names no architecture
   */
  supports(config: unknown): Promise<{ architecture: string | undefined; supported: boolean | undefined }>
  /**
   * Installs what conversions need, or joins an installation that is running. Nothing is done if it is there.
   * @throws CorralError `conversion_failed`, `insufficient_storage`, `runtime_missing`
   */
  install(waiting: Waiting): Promise<void>
  counts(): ConversionCounts
  /** Those that go on. */
  running(): RunningConversion[]
  /** What was made of a variant, by type. */
  list(variant: StoredVariant): Promise<ConvertedModel[]>
  /** Deletes one of them. @throws CorralError `model_not_found` when there is none of this type */
  remove(variant: StoredVariant, dtype: string): Promise<void>
}
