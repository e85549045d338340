import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults } from '../../../core/contracts/models.ts'
import { storedName } from '../../../core/models/gguf-file-name.ts'
import { type ModelName, parseModelName } from '../../../core/models/model-name.ts'

/** A file in a cache. */
export interface CacheFile {
  /** Below the folder of its model, with forward slashes. */
  path: string
  /** Absolute, symbolic links followed; where a link leads nowhere, the link itself. */
  source: string
  /** Bytes. */
  size: number
  /** What its first bytes tell, or why they could not be read. */
  content: 'gguf' | 'foreign' | 'other' | 'missing' | 'unreadable'
  /** Why it is unreadable, or a sentence that says what a foreign file is. */
  why?: string
  /** Digest that the cache says it has, 64 hex digits. */
  claimedSha256?: string
}

/** A model in a cache, and which of its files would be taken. */
export interface Candidate {
  /** What the tool calls it. */
  found: string
  name: ModelName
  format: 'gguf' | 'safetensors'
  /** Absolute path of what people know it by: its first file, folder or manifest. */
  path: string
  files: (AdoptedFile & { size: number })[]
  /** Ollama's tag, by which its users know it; `latest` is what a name without a tag means. */
  tag?: string
  /** What it was made with in that tool. */
  defaults?: ModelDefaults
  /** It has a chat template in Go's template language. */
  hasGoTemplate?: boolean
  /** What is not kept, and why: sentences. */
  notes?: string[]
  /** Why it cannot be taken. */
  problem?: string
}

/** The candidates without doubles, of which the first one without a problem counts. */
export function withoutDoubles(candidates: readonly Candidate[]): Candidate[] {
  const byName = new Map<string, Candidate>()
  for (const candidate of candidates) {
    const present = byName.get(candidate.found)
    if (!present || (present.problem && !candidate.problem)) byName.set(candidate.found, candidate)
  }
  return [...byName.values()]
}

/** Why weights cannot be taken from this file; undefined if they can. */
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
    return `${source} is no GGUF file: it does not begin with the four letters "GGUF". Download the model again.`
  }
  return undefined
}

/** A file of a candidate, under a name that every file system takes. */
export function adopted(file: CacheFile, path: string, role: AdoptedFile['role']): Candidate['files'][number] {
  const { source, size, claimedSha256 } = file
  const stored = path.split('/').map(storedName).join('/')
  return { source, path: stored, role, size, ...(claimedSha256 ? { claimedSha256 } : {}) }
}

/** Longest part of a model's name. */
const MAX_LENGTH = 96

/**
 * A model name as near as possible to what another tool calls it: what corral does not allow becomes `-`.
 * @param variant `latest` and an empty one are none
 */
export function validName(owner: string, name: string, variant?: string): ModelName {
  const bare = `${validPart(owner)}/${validPart(name)}`
  return parseModelName(variant ? `${bare}:${validPart(variant)}` : bare)
}

function validPart(text: string): string {
  const part = text
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
    .replace(/^[._-]+/, '')
    .slice(0, MAX_LENGTH)
    .replace(/[.-]+$/, '')
  if (part === '') return 'model'
  // Windows keeps some names for devices.
  return /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i.test(part) ? `model-${part}`.slice(0, MAX_LENGTH) : part
}
