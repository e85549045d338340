import type { ModelName } from '../models/model-name.ts'
import type { Caller } from './callers.ts'
import type { ModelDefaults, Origin, StoredFormat } from './models.ts'
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

/** Files that become a model. Their roles are given, so file names do not matter. */
export interface AdoptRequest {
  name: ModelName
  format: StoredFormat
  /** Label of the variant; read from the files if absent. */
  label?: string
  origin: Origin
  /** Model files first, in the order of their shards. */
  files: AdoptedFile[]
  /** The same files with other defaults are another model. If absent, a replaced variant's defaults are kept. */
  defaults?: ModelDefaults
  /** Whether the bare name always refers to this variant from now on, not only if it is the model's first. */
  becomesDefault?: boolean
  /** As in an `ImportRequest`. */
  caller?: Caller
}

declare module './storage.ts' {
  interface Storage {
    /**
     * Turns files into a variant, by link if possible. The files stay in their place. Their headers are read, so that a
     * damaged file never becomes a model. Calls `onCopied` for each copied file. The variant replaces an existing
     * variant of the same name, and a model with the same files, whose origin it keeps. Awaits `onRead` after reading
     * the headers.
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
