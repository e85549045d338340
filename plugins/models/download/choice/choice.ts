import type { PlannedDownload, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { type Headers, totalSize } from './gguf-models.ts'

/** The requested part of a repository. Without any field, the default. */
export interface Wanted {
  /** A label, a file's path or name with or without `.gguf`, or a folder. */
  variant?: string | undefined
  file?: string | undefined
}

/** Bytes of memory on this machine: main memory (at most what the process may use), and graphics memory or 0. */
export interface MemoryFacts {
  ram: number
  /** The part of `ram` that models may use, if it is limited. */
  most?: number
  gpu: number
}

export interface ChoiceRequest extends Wanted {
  /** In the hub's spelling, for messages, and for the label if no file name has one. */
  id: string
  files: readonly HubFile[]
  /** The result of `weightsFromIndex` for the index from `filesToRead`. */
  weightsInIndex?: string[]
  /** Parsed config.json of SafeTensors weights, if it was read: it names their type. */
  config?: unknown
  headers?: Headers
  memory: MemoryFacts
}

/** The part of a pull's plan that follows from the listing and the memory. */
export interface Choice
  extends Pick<PullPlan, 'format' | 'files' | 'size' | 'reason' | 'choices' | 'memory' | 'warnings'> {
  /** Undefined for SafeTensors weights without `config`: see `safetensorsLabel`. */
  label: string | undefined
}

export function toPlannedFile(file: HubFile, role: PlannedDownload['role'], storedPath: string): PlannedDownload {
  const { path, size, sha256, gitSha1 } = file
  return { path, storedPath, role, size, sha256, gitSha1 }
}

/** Removes files whose stored names differ only in case from an earlier one: some disks cannot store both. */
function withoutNameTwins(files: readonly PlannedDownload[]): PlannedDownload[] {
  const names = new Set<string>()
  return files.filter(({ storedPath }) => names.size < names.add(storedPath.toLowerCase()).size)
}

/** Creates the error for a repository, or a part of it, that cannot be pulled. */
export const refusal = (code: ErrorCode, message: string, details?: Record<string, unknown>): CorralError =>
  new CorralError(code, message, { param: 'model', ...(details ? { details } : {}) })

const GIB = 2 ** 30
const MIN_GPU_BYTES = 4 * GIB

/** Bytes that models may use: in the fastest memory, and in total. */
export interface Budget {
  best: number
  all: number
  gpu: boolean
}

/** Leaves the rest to the system, other programs and the context. */
export function memoryBudget({ ram, most, gpu }: MemoryFacts): Budget {
  const main = Math.min(0.7 * ram, most ?? ram)
  if (gpu < MIN_GPU_BYTES) return { best: main, all: main, gpu: false }
  return { best: 0.9 * gpu, all: main + gpu, gpu: true }
}

/** Estimates the bytes of memory for a model with a context of usual length. */
export const requiredMemory = (weights: number, projector: number): number =>
  Math.round(weights * 1.1 + 0.5 * GIB + projector)

/** Whether bytes of memory fit this machine. */
export function roomFor(required: number, facts: MemoryFacts): Choice['memory'] {
  const { best, all } = memoryBudget(facts)
  const available = Math.round(required <= best ? best : all)
  return { required: Math.round(required), available, fits: required <= available }
}

/**
 * Completes a choice with what follows from its files and the memory.
 * @param required bytes of memory
 * @param misfit warns if that is too much
 */
export function toChoice(
  { memory: facts }: ChoiceRequest,
  required: number,
  choice: Omit<Choice, 'size' | 'memory'>,
  misfit: (memory: Choice['memory']) => string
): Choice {
  const memory = roomFor(required, facts)
  const files = withoutNameTwins(choice.files)
  const warnings = memory.fits ? choice.warnings : [...choice.warnings, misfit(memory)]
  return { ...choice, files, size: totalSize(files), memory, warnings }
}
