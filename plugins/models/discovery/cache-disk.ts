import type { Dirent } from 'node:fs'
import { lstat, readdir, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults } from '../../../core/contracts/models.ts'
import { errorMessage, isSystemError } from '../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../core/models/foreign-start.ts'
import { storedName } from '../../../core/models/gguf-file-name.ts'
import { type ModelName, parseModelName } from '../../../core/models/model-name.ts'
import { openRegularFile, readOpened } from '../../../core/system/regular-file.ts'

/** Text files in caches (references, manifests, indexes) are far smaller. */
const MAX_TEXT_BYTES = 64_000_000
const MAX_DEPTH = 8

/** Reads the caches of other tools. Skips unreadable paths, and records them in `unreadable`. */
export class CacheDisk {
  readonly unreadable: string[] = []
  readonly #locate: (path: string) => Promise<string>

  /** @param locate resolves symbolic links; throws CorralError for paths that the caller may not read */
  constructor(locate: (path: string) => Promise<string> = path => realpath(path)) {
    this.#locate = locate
  }

  /** Returns a folder's entries by name, or undefined if it is missing or unreadable. */
  async entries(folder: string): Promise<Dirent[] | undefined> {
    const read = async () => await readdir(await this.#locate(folder), { withFileTypes: true })
    const entries = await this.#reading(folder, read)
    return entries?.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  async subfolders(folder: string): Promise<string[]> {
    const names: string[] = []
    for (const entry of (await this.entries(folder)) ?? []) {
      if (entry.name.startsWith('.')) continue
      if (entry.isDirectory() || (entry.isSymbolicLink() && (await this.#isFolder(join(folder, entry.name))))) {
        names.push(entry.name)
      }
    }
    return names
  }

  /** Returns the relative paths of all files and links below a folder, except hidden ones. */
  async files(folder: string, prefix = '', depth = 0): Promise<string[]> {
    const paths: string[] = []
    for (const entry of (await this.entries(join(folder, prefix))) ?? []) {
      if (entry.name.startsWith('.')) continue
      const path = prefix ? `${prefix}/${entry.name}` : entry.name
      if (!entry.isDirectory()) paths.push(path)
      else if (depth < MAX_DEPTH) paths.push(...(await this.files(folder, path, depth + 1)))
    }
    return paths
  }

  async text(path: string): Promise<string | undefined> {
    return await this.#reading(path, async () => {
      const file = await openRegularFile(await this.#locate(path))
      try {
        const { size } = await file.stat()
        if (size > MAX_TEXT_BYTES) throw new Error(`it has ${size} bytes, which is too much for a file of its kind`)
        return (await readOpened(file, size)).toString('utf8')
      } finally {
        await file.close()
      }
    })
  }

  async #reading<T>(path: string, read: () => Promise<T>): Promise<T | undefined> {
    try {
      return await read()
    } catch (error) {
      if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
      this.unreadable.push(
        isSystemError(error, 'EACCES', 'EPERM')
          ? `corral may not read ${path}. Let its user read it and enter the folders above it, or copy the models.`
          : `${path} cannot be read: ${errorMessage(error)}.`
      )
      return undefined
    }
  }

  /** Inspects one file of a cache: its real path, its size and its first bytes. */
  async file(path: string, link: string): Promise<CacheFile> {
    try {
      const source = await this.#locate(link)
      // Excludes pipes and folders.
      if (!(await lstat(source)).isFile()) return { path, source, size: 0, content: 'missing' }
      const file = await openRegularFile(source)
      try {
        const { size } = await file.stat()
        const start = await readOpened(file, Math.min(size, START_SIZE))
        const why = foreignStart(source, start)
        if (why !== undefined) return { path, source, size, content: 'foreign', why }
        return { path, source, size, content: start.toString('latin1', 0, 4) === 'GGUF' ? 'gguf' : 'other' }
      } finally {
        await file.close()
      }
    } catch (error) {
      if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'ELOOP')) return { path, source: link, size: 0, content: 'missing' }
      return { path, source: link, size: 0, content: 'unreadable', why: errorMessage(error) }
    }
  }

  async #isFolder(path: string): Promise<boolean> {
    try {
      return (await lstat(await this.#locate(path))).isDirectory()
    } catch {
      // Treat a dangling link as the file that it may have been.
      return false
    }
  }
}

export interface CacheFile {
  /** Relative to the model's folder, with forward slashes. */
  path: string
  /** Absolute, with symbolic links resolved. For a dangling link, the link itself. */
  source: string
  size: number
  /** The kind of content by its first bytes, or why it could not be read. */
  content: 'gguf' | 'foreign' | 'other' | 'missing' | 'unreadable'
  /** Why it is unreadable, or a sentence about a foreign file. */
  why?: string
  claimedSha256?: string
}

/** A model in a cache, and its files that would be imported. */
export interface Candidate {
  found: string
  name: ModelName
  format: 'gguf' | 'safetensors'
  /** Absolute path that identifies it: its first file, folder or manifest. */
  path: string
  files: (AdoptedFile & { size: number })[]
  tag?: string
  defaults?: ModelDefaults
  hasGoTemplate?: boolean
  /** Sentences about lost content, with the reasons. */
  notes?: string[]
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

export function fileProblem({ source, size, content, why }: CacheFile, format: Candidate['format']) {
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
