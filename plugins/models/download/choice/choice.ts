import type { PlannedDownload, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { describesSafetensors } from '../../../../core/models/safetensors-layout.ts'

/** What was requested of a repository; nothing means the default. */
export interface Wanted {
  /** A label, a file's path or name with or without `.gguf`, or a folder. */
  variant?: string | undefined
  /** Exact path of a file, as an address names it. */
  file?: string | undefined
}

/** Total bytes of this machine: main memory (no more than the process may use), and graphics memory or 0. */
export interface MemoryFacts {
  ram: number
  /** Of `ram`, what models may have; absent where that is not bounded. */
  most?: number
  gpu: number
}

/** The keys at the beginning of GGUF files that were read, by path. */
export type Headers = ReadonlyMap<string, Record<string, unknown>>

export interface ChoiceRequest extends Wanted {
  /** As the hub spells it: for messages, and for the label where no file name has one. */
  id: string
  files: readonly HubFile[]
  /** What `weightsOfIndex` read of the file that `indexToRead` named. */
  weightsInIndex?: string[]
  /** Parsed config.json of SafeTensors weights, where it was read already: it names their type. */
  config?: unknown
  /** What was read of the files that `doubtfulFiles` named. */
  headers?: Headers
  memory: MemoryFacts
}

/** The part of a pull's plan that follows from the listing and the memory. */
export interface Choice
  extends Pick<PullPlan, 'format' | 'files' | 'size' | 'reason' | 'choices' | 'memory' | 'warnings'> {
  /** Undefined for SafeTensors weights without `config`: see `safetensorsLabel`. */
  label: string | undefined
}

/** Byte order: the order of a hub's listing must not change the choice. */
export const byPath = (a: { path: string }, b: { path: string }) => (a.path < b.path ? -1 : a.path > b.path ? 1 : 0)

export const folderOf = (path: string) => path.slice(0, path.lastIndexOf('/') + 1)
export const fileNameOf = (path: string) => path.slice(path.lastIndexOf('/') + 1)

/** A listed file as one to download. */
export function plannedFile(file: HubFile, role: PlannedDownload['role'], storedPath: string): PlannedDownload {
  const { path, size, sha256, gitSha1 } = file
  return { path, storedPath, role, size, sha256, gitSha1 }
}

/** Keeps the first of files whose stored names differ by case only: some file systems cannot hold both. */
export function withoutNameTwins(files: readonly PlannedDownload[]): PlannedDownload[] {
  const names = new Set<string>()
  return files.filter(({ storedPath }) => names.size < names.add(storedPath.toLowerCase()).size)
}

/** Bytes of all files whose size is known. */
export const sizeOf = (files: readonly { size: number | undefined }[]) =>
  files.reduce((sum, file) => sum + (file.size ?? 0), 0)

/** The error for a repository, or a part of it, that cannot be pulled. */
export function refusal(
  code: 'unsupported_capability' | 'repo_not_found' | 'invalid_request' | 'invalid_model_name',
  message: string,
  details?: Record<string, unknown>
): CorralError {
  return new CorralError(code, message, { param: 'model', ...(details ? { details } : {}) })
}

/** Names for a sentence, at most twelve. */
export function shortList(names: readonly string[]): string {
  const shown = names.slice(0, 12).join(', ')
  return names.length > 12 ? `${shown} and ${names.length - 12} more` : shown
}

const GIB = 2 ** 30
/** Graphics memory below this is not considered. */
const MIN_GPU = 4 * GIB

/** Bytes that models may use on a machine: in its fastest memory, and in all memory. */
export interface Budget {
  best: number
  all: number
  /** Whether the fastest memory is graphics memory. */
  gpu: boolean
}

/** Leaves the rest to the system, other programs and the context. */
export function budgetOf({ ram, most, gpu }: MemoryFacts): Budget {
  const main = Math.min(0.7 * ram, most ?? ram)
  if (gpu < MIN_GPU) return { best: main, all: main, gpu: false }
  return { best: 0.9 * gpu, all: main + gpu, gpu: true }
}

/** Estimated bytes of a model with a context of usual length. */
export function requiredMemory(weights: number, projector: number): number {
  return Math.round(weights * 1.1 + 0.5 * GIB + projector)
}

/** Whether a model fits the memory. */
export function memoryCheck(required: number, budget: Budget): PullPlan['memory'] {
  const available = Math.round(required <= budget.best ? budget.best : budget.all)
  return { required, available, fits: required <= available }
}

/** Files of a listing that may belong to a model. Repositories with all quantizations of huge models have some hundreds. */
const MAX_MODEL_FILES = 2_000
const MODEL_FILE =
  /\.(?:gguf(?:[.-].*)?|gguf_file|safetensors|dat|imatrix)$|^(?:model_index\.json|(?:readme|licen[cs]e|notice)(?:\..*)?|template|system|params)$/i

/**
 * The files among which a model is chosen. In a long listing these are the files whose names may belong to a model.
 * @throws CorralError `unsupported_capability` if there are thousands of them
 */
export function requireFewModelFiles(id: string, files: readonly HubFile[]): readonly HubFile[] {
  if (files.length <= MAX_MODEL_FILES) return files
  const relevant = files.filter(({ path }) => {
    const name = fileNameOf(path)
    return MODEL_FILE.test(name) || describesSafetensors(name)
  })
  if (relevant.length <= MAX_MODEL_FILES) return relevant
  throw refusal(
    'unsupported_capability',
    `${id} has ${relevant.length} files that could belong to a model, more than ${MAX_MODEL_FILES}. ` +
      'Pull a model by the address of its file, or look for another repository.'
  )
}
