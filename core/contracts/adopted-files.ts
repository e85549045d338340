import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { ModelDefaults, Origin } from './models.ts'
import type { Waiting } from './progress.ts'
import type { StoredFile } from './storage.ts'

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

/** Files that were chosen already, and whose names need not say what they are. */
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
  /** The bare name means it from now on; otherwise only if it is the model's first variant. */
  becomesDefault?: boolean
  /** As in an `ImportRequest`. */
  caller?: Caller
}

declare module './storage.ts' {
  interface Storage {
    /**
     * Makes files a variant, by link where possible; they stay where they are. Their headers are read, so that what is
     * damaged never becomes a model. `onCopied` is called for each file that was copied. What is `made` takes the place
     * of what was made under its name, and that of a model with the same files, which keeps its origin. `onRead` is called
     * and awaited when the headers have been read.
     * @throws CorralError `invalid_request` saying what is wrong with them, `model_exists`, `insufficient_storage`,
     * `path_not_allowed`
     */
    adopt(
      request: AdoptRequest,
      waiting?: Waiting & { onCopied?: OnCopied; onRead?: () => Promise<void> }
    ): Promise<StoredVariant>
    /**
     * The path without symbolic links, if this caller may import from there.
     * @throws CorralError `path_not_allowed`, without having looked whether it is there; what the system says
     */
    importPath(path: string, caller: Caller | undefined): Promise<string>
  }
}
