import { mkdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { Type } from 'typebox'
import { freeSpace } from '../../../core/system/disk-space.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'

/** `ggml-rpc-server` appends this to the folder that it is given. */
const FOLDER = 'rpc'
const INDEX = 'complete.json'
const IndexSchema = Type.Object({ files: Type.Record(Type.String(), Type.Number()) })

interface CachedFile {
  name: string
  size: number
  /** Milliseconds since 1970 of the last write or read, as far as the file system records it. */
  usedAt: number
}

/** Returns the files to delete so that the others fit: the least recently used. Pure. */
export function surplusFiles(files: readonly CachedFile[], limit: number): CachedFile[] {
  let size = files.reduce((sum, file) => sum + file.size, 0)
  return [...files]
    .sort((a, b) => a.usedAt - b.usedAt)
    .filter(file => {
      if (size <= limit) return false
      size -= file.size
      return true
    })
}

/**
 * Manages the weights that `ggml-rpc-server` caches on disk (`--cache`). The server does not limit its cache, and
 * trusts every file in it: a file that was half written when the server was killed would yield wrong weights at the
 * next load. So a file is trusted only after the client that sent it has disconnected (`settle`). All other files are
 * removed before the server starts (`prepare`).
 */
export class WorkerCache {
  /** The value of `LLAMA_CACHE`. */
  readonly directory: string
  readonly #limit: number

  /** @param limit bytes. Half of the free disk space is the maximum in any case. */
  constructor(directory: string, limit: number) {
    this.directory = directory
    this.#limit = limit
  }

  async #files(): Promise<CachedFile[]> {
    const folder = join(this.directory, FOLDER)
    const files = await Promise.all(
      (await namesIn(folder)).map(async name => {
        const found = await stat(join(folder, name)).catch(() => undefined)
        return found?.isFile() ? { name, size: found.size, usedAt: Math.max(found.mtimeMs, found.atimeMs) } : []
      })
    )
    return files.flat()
  }

  async #remove(files: readonly CachedFile[]): Promise<void> {
    await Promise.all(files.map(({ name }) => rm(join(this.directory, FOLDER, name), { force: true })))
  }

  /** Creates the folder, and removes files that may be incomplete. Call it while no server runs. */
  async prepare(): Promise<void> {
    await mkdir(join(this.directory, FOLDER), { recursive: true, mode: 0o700 })
    const complete = (await readJsonFile(join(this.directory, INDEX), IndexSchema))?.value?.files ?? {}
    await this.#remove((await this.#files()).filter(({ name, size }) => complete[name] !== size))
    await this.settle()
  }

  /** Marks all files as complete, because nothing is being written, and removes surplus files. */
  async settle(): Promise<void> {
    const kept = await this.trim()
    const files = Object.fromEntries(kept.map(({ name, size }) => [name, size]))
    await writeJsonFile(join(this.directory, INDEX), { files })
  }

  /** Removes surplus files, also while a client is connected. The server then asks for the weights again. */
  async trim(): Promise<CachedFile[]> {
    const files = await this.#files()
    const size = files.reduce((sum, file) => sum + file.size, 0)
    const room = size + (await freeSpace(this.directory))
    const surplus = new Set(surplusFiles(files, Math.min(this.#limit, room / 2)))
    await this.#remove([...surplus])
    return files.filter(file => !surplus.has(file))
  }
}
