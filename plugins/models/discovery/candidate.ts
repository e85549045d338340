import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults } from '../../../core/contracts/models.ts'
import { storedName } from '../../../core/models/gguf-file-name.ts'
import { type ModelName, parseModelName } from '../../../core/models/model-name.ts'

export interface CacheFile {
  /** Relative to the model's folder, with forward slashes. */
  path: string
  /** Absolute, with symbolic links resolved. For a dangling link, the link itself. */
  source: string
  size: number
  /** The kind of content by its first bytes, or why it could not be read. */
  content: 'gguf' | 'foreign' | 'other' | 'missing' | 'unreadable'
  /** Why it is unreadable, or a sentence that says what a foreign file is. */
  why?: string
  /** SHA-256 according to the cache, 64 hex digits. */
  claimedSha256?: string
}

/** A model in a cache, and its files that would be imported. */
export interface Candidate {
  /** The tool's name for it. */
  found: string
  name: ModelName
  format: 'gguf' | 'safetensors'
  /** Absolute path that identifies it: its first file, folder or manifest. */
  path: string
  files: (AdoptedFile & { size: number })[]
  /** Ollama's tag. A name without a tag means `latest`. */
  tag?: string
  /** The settings it has in that tool. */
  defaults?: ModelDefaults
  hasGoTemplate?: boolean
  /** Sentences about what is lost, and why. */
  notes?: string[]
  /** Why it cannot be imported. */
  problem?: string
}

/** Removes duplicates. The first candidate without a problem wins. */
export function withoutDuplicates(candidates: readonly Candidate[]): Candidate[] {
  const byName = new Map<string, Candidate>()
  for (const candidate of candidates) {
    const present = byName.get(candidate.found)
    if (!present || (present.problem && !candidate.problem)) byName.set(candidate.found, candidate)
  }
  return [...byName.values()]
}

/** Explains why weights cannot be imported from this file. Undefined if they can. */
export function fileProblem(
  { source, size, content, why }: CacheFile,
  format: Candidate['format']
): string | undefined {
  if (content === 'missing') {
    return `${source} is missing: its download was not finished, or it was deleted. Download the model again.`
  }
  if (content === 'unreadable') {
    return `corral cannot read ${source} (${why}). Let its user read that file and enter the folders above it.`
  }
  if (content === 'foreign') return why
  if (size === 0) return `${source} is empty: its download was not finished. Download the model again.`
  if (format === 'gguf' && content !== 'gguf') {
    return `${source} is not a GGUF file: it does not begin with the four letters "GGUF". Download the model again.`
  }
  return undefined
}

/** Returns a candidate's file under a name that every file system accepts. */
export function toImportedFile(file: CacheFile, path: string, role: AdoptedFile['role']): Candidate['files'][number] {
  const { source, size, claimedSha256 } = file
  const stored = path.split('/').map(storedName).join('/')
  return { source, path: stored, role, size, ...(claimedSha256 ? { claimedSha256 } : {}) }
}

const MAX_NAME_LENGTH = 96

/** Returns a valid model name: characters that corral does not allow become `-`. @param variant empty for none */
export function validName(owner: string, name: string, variant?: string): ModelName {
  const bare = `${validPart(owner)}/${validPart(name)}`
  return parseModelName(variant ? `${bare}:${validPart(variant)}` : bare)
}

function validPart(text: string): string {
  const part = text
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
    .replace(/^[._-]+/, '')
    .slice(0, MAX_NAME_LENGTH)
    .replace(/[.-]+$/, '')
  if (part === '') return 'model'
  // Windows reserves some names for devices.
  return /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i.test(part) ? `model-${part}`.slice(0, MAX_NAME_LENGTH) : part
}
