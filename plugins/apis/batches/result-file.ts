import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { isObject } from '../../../core/system/json-object.ts'
import { readLines } from './request-lines.ts'

const NEWLINE = 10

/** An append-only file of results, one JSON value per line. A line survives a kill once `add` has resolved. */
export class ResultFile {
  readonly #handle: FileHandle
  /** Bytes of complete lines. */
  #size: number
  #waiting: string[] = []
  #writing: Promise<void> | undefined
  count: number

  private constructor(handle: FileHandle, size: number, count: number) {
    this.#handle = handle
    this.#size = size
    this.count = count
  }

  /**
   * Opens or creates the file and drops an incomplete last line.
   * @param found called with the `custom_id` of each line
   */
  static async open(path: string, found: (customId: string) => void): Promise<ResultFile> {
    const handle = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600)
    try {
      const size = await wholeLines(handle)
      await handle.truncate(size)
      let count = 0
      if (size > 0) {
        for await (const { text } of readLines(path)) {
          const value: unknown = JSON.parse(text!)
          if (isObject(value) && typeof value.custom_id === 'string') found(value.custom_id)
          count++
        }
      }
      return new ResultFile(handle, size, count)
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  /** Resolves when the line is on disk. @throws the disk's error, in which case nothing of the line is stored */
  add(value: object): Promise<void> {
    this.#waiting.push(`${JSON.stringify(value)}\n`)
    // A single write takes all lines that were added during the previous one.
    this.#writing ??= this.#writeAll()
    return this.#writing
  }

  async #writeAll(): Promise<void> {
    try {
      // Lines that are added in the same tick are written together.
      await Promise.resolve()
      await this.#write()
    } finally {
      // Synchronous, so a line that is added from now on starts a new write.
      this.#writing = undefined
    }
  }

  async #write(): Promise<void> {
    while (this.#waiting.length > 0) {
      const lines = this.#waiting
      this.#waiting = []
      const bytes = Buffer.from(lines.join(''))
      try {
        for (let at = 0; at < bytes.length; ) {
          at += (await this.#handle.write(bytes, at, bytes.length - at, this.#size + at)).bytesWritten
        }
        await this.#handle.datasync()
      } catch (error) {
        this.#waiting = []
        await this.#handle.truncate(this.#size).catch(() => {})
        throw error
      }
      this.#size += bytes.length
      this.count += lines.length
    }
  }

  async close(): Promise<void> {
    await this.#writing?.catch(() => {})
    await this.#handle.close()
  }
}

/** Returns the number of bytes up to the end of the last complete line. */
async function wholeLines(handle: FileHandle): Promise<number> {
  const piece = Buffer.alloc(64 * 1024)
  let { size } = await handle.stat()
  while (size > 0) {
    const from = Math.max(0, size - piece.length)
    const { bytesRead } = await handle.read(piece, 0, size - from, from)
    const at = piece.subarray(0, bytesRead).lastIndexOf(NEWLINE)
    if (at !== -1) return from + at + 1
    size = from
  }
  return 0
}
