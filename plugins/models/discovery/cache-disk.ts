import type { Dirent } from 'node:fs'
import { lstat, readdir, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import { errorMessage, isSystemError } from '../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../core/models/foreign-start.ts'
import { openRegularFile, readOpened } from '../../../core/system/regular-file.ts'
import type { CacheFile } from './candidate.ts'

/** Texts of caches (references, manifests, indexes) are far smaller. */
const MAX_TEXT = 64_000_000
/** Folders within a model's folder; more is no model. */
const MAX_DEPTH = 8

/**
 * Reads caches of other tools. What may not be read is noted in `unreadable` and passed over, so that one folder of
 * another user does not hide the rest.
 */
export class CacheDisk {
  readonly unreadable: string[] = []
  readonly #locate: (path: string) => Promise<string>

  /** @param locate gives the path without symbolic links; throws CorralError for what may not be looked at */
  constructor(locate: (path: string) => Promise<string> = path => realpath(path)) {
    this.#locate = locate
  }

  /** A folder's entries by name; undefined when it is not there or may not be read. */
  async entries(folder: string): Promise<Dirent[] | undefined> {
    const read = async () => await readdir(await this.#locate(folder), { withFileTypes: true })
    const entries = await this.#reading(folder, read)
    return entries?.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  /** Names of a folder's subfolders (links to folders included); none when it is not there. */
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

  /** Relative paths of all files and links below a folder, hidden ones left out; links to folders are not followed. */
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

  /** A small file's text; undefined when it is not there or may not be read. */
  async text(path: string): Promise<string | undefined> {
    return await this.#reading(path, async () => {
      const file = await openRegularFile(await this.#locate(path))
      try {
        const { size } = await file.stat()
        if (size > MAX_TEXT) throw new Error(`it has ${size} bytes, which is too much for its kind`)
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

  /** Looks at one file of a cache: where it really is, how large, and how it begins. */
  async file(path: string, link: string): Promise<CacheFile> {
    try {
      const source = await this.#locate(link)
      // Neither pipes nor folders are files of models.
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
      // A link that leads nowhere is looked at as the file it may have been.
      return false
    }
  }
}
