import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { ModelDefaults, Origin } from './models.ts'
import type { Waiting } from './progress.ts'
import type { StoredFile } from './storage.ts'

/** A local file that is to become part of a model. */
export interface AdoptedFile {
  /** Absolute path of a regular file. */
  source: string
  /** Its name in the store, relative, with forward slashes. */
  path: string
  role: StoredFile['role']
  /** 64 hex digits, if they were just computed from its bytes. The file is not hashed again then. */
  sha256?: string
  /** 64 hex digits that its bytes should have. If they differ, the file is refused as damaged. */
  claimedSha256?: string
}

export type OnCopied = (file: { path: string; role: StoredFile['role'] }) => void

/** Files to make a model of. Their roles are known, so their names need not show them. */
export interface AdoptRequest {
  name: ModelName
  format: 'gguf' | 'safetensors'
  /** Label of the variant; read from the files if absent. */
  label?: string
  origin: Origin
  /** Model files first, in the order of their shards. */
  files: AdoptedFile[]
  /** Equal files with other defaults are another model. If absent, a replaced variant's defaults are kept. */
  defaults?: ModelDefaults
  /** Whether the bare name refers to it from now on; otherwise only if it is the model's first variant. */
  becomesDefault?: boolean
  /** As in an `ImportRequest`. */
  caller?: Caller
}

declare module './storage.ts' {
  interface Storage {
    /**
     * Turns files into a variant, by link if possible; the files stay where they are. Their headers are read, so that a
     * damaged file never becomes a model. Calls `onCopied` for each file that was copied. The variant replaces an
     * existing one of its name, and a model with the same files, whose origin it keeps. Awaits `onRead` when the
     * headers have been read.
     * @throws CorralError `invalid_request` that says what is wrong with the files, `model_exists`,
     * `insufficient_storage`, `path_not_allowed`
     */
    adopt(
      request: AdoptRequest,
      waiting?: Waiting & { onCopied?: OnCopied; onRead?: () => Promise<void> }
    ): Promise<StoredVariant>
    /** Resolves links in a path from which the caller may import. @throws CorralError `path_not_allowed` */
    importPath(path: string, caller: Caller | undefined): Promise<string>
  }
}
