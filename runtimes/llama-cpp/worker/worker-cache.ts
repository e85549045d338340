import { mkdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { Type } from 'typebox'
import { freeSpace } from '../../../core/system/disk-space.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'

/** What `ggml-rpc-server` appends to the folder that it is given. */
const FOLDER = 'rpc'
const INDEX = 'complete.json'
const IndexSchema = Type.Object({ files: Type.Record(Type.String(), Type.Number()) })

interface CachedFile {
  name: string
  size: number
  /** Milliseconds since 1970: when it was written or read last, as far as the file system notes that. */
  usedAt: number
}

/** Which files go so that the others fit: those used longest ago. Pure. */
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
 * The weights that `ggml-rpc-server` keeps on the disk (`--cache`). It bounds them by nothing, and takes a file for whole
 * without looking: one that it was writing when it was killed would be wrong weights at the next load. So files count
 * only once the client that they came from has gone (`settle`), and all others are removed before it starts (`prepare`).
 */
export class WorkerCache {
  /** What `LLAMA_CACHE` is set to. */
  readonly directory: string
  readonly #limit: number

  /** @param limit bytes; half of what is free on the disk beside them is the most in any case */
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

  /** Makes the folder, and removes files that may be cut short: while no server runs. */
  async prepare(): Promise<void> {
    await mkdir(join(this.directory, FOLDER), { recursive: true, mode: 0o700 })
    const complete = (await readJsonFile(join(this.directory, INDEX), IndexSchema))?.value?.files ?? {}
    await this.#remove((await this.#files()).filter(({ name, size }) => complete[name] !== size))
    await this.settle()
  }

  /** Notes that nothing is being written, so that all files are whole; removes what is too much. */
  async settle(): Promise<void> {
    const kept = await this.trim()
    const files = Object.fromEntries(kept.map(({ name, size }) => [name, size]))
    await writeJsonFile(join(this.directory, INDEX), { files })
  }

  /** Removes what is too much, also while a client is connected: the server then asks for the weights again. */
  async trim(): Promise<CachedFile[]> {
    const files = await this.#files()
    const size = files.reduce((sum, file) => sum + file.size, 0)
    const room = size + (await freeSpace(this.directory))
    const surplus = new Set(surplusFiles(files, Math.min(this.#limit, room / 2)))
    await this.#remove([...surplus])
    return files.filter(file => !surplus.has(file))
  }
}
