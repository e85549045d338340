import type { Dirent } from 'node:fs'
import { open, readdir, readFile, realpath, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { isSystemError, messageOf } from '../../core/errors.ts'
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

  /** A folder's entries by name; undefined when it is not there or may not be read. */
  async entries(folder: string): Promise<Dirent[] | undefined> {
    const entries = await this.#reading(folder, () => readdir(folder, { withFileTypes: true }))
    return entries?.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  /** Names of a folder's subfolders (links to folders included); none when it is not there. */
  async subfolders(folder: string): Promise<string[]> {
    const names: string[] = []
    for (const entry of (await this.entries(folder)) ?? []) {
      if (entry.name.startsWith('.')) continue
      if (entry.isDirectory() || (entry.isSymbolicLink() && (await isFolder(join(folder, entry.name))))) {
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
      const { size } = await stat(path)
      if (size > MAX_TEXT) throw new Error(`it has ${size} bytes, which is too much for its kind`)
      return await readFile(path, 'utf8')
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
          : `${path} cannot be read: ${messageOf(error)}.`
      )
      return undefined
    }
  }
}

/** Looks at one file of a cache: where it really is, how large, and how it begins. */
export async function inspectFile(path: string, link: string): Promise<CacheFile> {
  try {
    const source = await realpath(link)
    const found = await stat(source)
    // Reading a pipe would wait for a writer.
    if (!found.isFile()) return { path, source, size: 0, content: 'missing' }
    return { path, source, size: found.size, content: contentOf(await startOf(source)) }
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'ELOOP')) return { path, source: link, size: 0, content: 'missing' }
    return { path, source: link, size: 0, content: 'unreadable', why: messageOf(error) }
  }
}

async function startOf(path: string): Promise<string> {
  const file = await open(path, 'r')
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(64), 0, 64, 0)
    return buffer.toString('latin1', 0, bytesRead)
  } finally {
    await file.close()
  }
}

function contentOf(start: string): CacheFile['content'] {
  if (start.startsWith('GGUF')) return 'gguf'
  return start.startsWith('version https://git-lfs.github.com/spec/') ? 'pointer' : 'other'
}

async function isFolder(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory()
  } catch {
    // A link that leads nowhere is looked at as the file it may have been.
    return false
  }
}
