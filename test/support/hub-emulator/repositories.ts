import { createHash } from 'node:crypto'
import { type Content, type EmulatedFile, getDigests, toContent } from './contents.ts'

export interface EmulatedRepository {
  files: Record<string, EmulatedFile>
  /** More branches and tags, with their files. */
  revisions?: Record<string, Record<string, EmulatedFile>>
  private?: boolean
  gated?: 'auto' | 'manual'
  disabled?: boolean
  /** Downloads that searches report and sort by. */
  downloads?: number
  likes?: number
  license?: string
  /** That the hub has read in a GGUF file. */
  chatTemplate?: string
  task?: string
  /** A token that may read the repository although it is private or gated. */
  token?: string
}

/** A file at one commit, with everything that hubs report about it. */
export interface Entry {
  path: string
  size: number
  content: Content
  sha256: string
  /** Stored by git-lfs: git itself has a pointer. */
  lfs: boolean
  /** Git's name of the blob: of the bytes, or of the pointer if git-lfs stores them. */
  blobId: string
  pointerSize: number
}

export interface Commit {
  id: string
  entries: Entry[]
}

const LARGE = 10 * 1024 * 1024

async function toEntry(path: string, file: EmulatedFile): Promise<Entry> {
  const content = toContent(file)
  const { sha256, gitSha1 } = await getDigests(content)
  const lfs = /\.(gguf|safetensors|bin|pth|pt|onnx|h5|msgpack|model)$/.test(path) || content.size > LARGE
  const pointer = `version https://git-lfs.github.com/spec/v1\noid sha256:${sha256}\nsize ${content.size}\n`
  const blobId = lfs ? createHash('sha1').update(`blob ${pointer.length}\0${pointer}`).digest('hex') : gitSha1
  return { path, size: content.size, content, sha256, lfs, blobId, pointerSize: pointer.length }
}

async function toCommit(name: string, files: Record<string, EmulatedFile>): Promise<Commit> {
  const entries: Entry[] = []
  for (const path of Object.keys(files).sort()) entries.push(await toEntry(path, files[path]!))
  const listing = entries.map(entry => `${entry.path} ${entry.blobId}`).join('\n')
  return { id: createHash('sha1').update(`${name}\n${listing}`).digest('hex'), entries }
}

/** A repository with its history. Branches and tags move, commits stay. */
export class Repository {
  readonly name: string
  readonly settings: EmulatedRepository
  readonly defaultBranch: string
  readonly #names = new Map<string, Promise<Commit>>()
  readonly #past: Promise<Commit>[] = []

  constructor(name: string, settings: EmulatedRepository, defaultBranch: string) {
    this.name = name
    this.settings = settings
    this.defaultBranch = defaultBranch
    this.#names.set(defaultBranch, toCommit(name, settings.files))
    for (const [revision, files] of Object.entries(settings.revisions ?? {})) {
      this.#names.set(revision, toCommit(name, files))
    }
  }

  /** Commits other files to the default branch. The previous commit stays available. */
  change(files: Record<string, EmulatedFile>): void {
    this.#past.push(this.#names.get(this.defaultBranch)!)
    this.#names.set(this.defaultBranch, toCommit(this.name, files))
  }

  /** @param revision a branch, a tag or a full commit id */
  async at(revision = this.defaultBranch): Promise<Commit | undefined> {
    const named = this.#names.get(revision)
    if (named) return named
    for (const commit of await Promise.all([...this.#names.values(), ...this.#past])) {
      if (commit.id === revision) return commit
    }
    return undefined
  }
}

/**
 * Repositories that a search returns: all words are in their names and they have a file of this format, most downloads
 * first.
 */
export function searched(all: Iterable<Repository>, words: string, format: string | null): Repository[] {
  const wanted = words.toLowerCase().split(/\s+/)
  return [...all]
    .filter(({ name, settings }) => {
      const hasFormat = !format || Object.keys(settings.files).some(path => path.endsWith(`.${format}`))
      return !settings.private && hasFormat && wanted.every(word => name.toLowerCase().includes(word))
    })
    .sort((a, b) => (b.settings.downloads ?? 0) - (a.settings.downloads ?? 0))
}

/** Formats of a repository's weights, as hubs tag them. */
export function getFormats({ settings }: Repository): string[] {
  return ['gguf', 'safetensors'].filter(format => Object.keys(settings.files).some(path => path.endsWith(`.${format}`)))
}

/** The entries of the root, or of all folders. Folders are `{path, size: 0}` without `entry`. */
export function listing(entries: Entry[], recursive: boolean): { path: string; size: number; entry?: Entry }[] {
  const found = new Map<string, Entry | undefined>()
  for (const entry of entries) {
    const parts = entry.path.split('/')
    for (let depth = 1; depth < parts.length; depth++) {
      if (recursive || depth === 1) found.set(parts.slice(0, depth).join('/'), undefined)
    }
    if (recursive || parts.length === 1) found.set(entry.path, entry)
  }
  return [...found.entries()]
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([path, entry]) => ({ path, size: entry?.size ?? 0, ...(entry ? { entry } : {}) }))
}
