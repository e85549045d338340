import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { isObject } from '../../../core/system/json-object.ts'
import { linesOf } from './request-lines.ts'

const NEWLINE = 10

/** A file of results, one JSON value a line, that is only ever added to. What `add` has settled for outlives a kill. */
export class ResultFile {
  readonly #handle: FileHandle
  /** Bytes that are whole lines. */
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
   * Opens the file, new where there is none. A last line that a kill left in its middle is dropped.
   * @param found called with the `custom_id` of each line that is there
   */
  static async open(path: string, found: (customId: string) => void): Promise<ResultFile> {
    const handle = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600)
    try {
      const size = await wholeLines(handle)
      await handle.truncate(size)
      let count = 0
      if (size > 0) {
        for await (const { text } of linesOf(path)) {
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

  /** Settles once the line is on the disk. @throws as the disk does; then nothing of it is there */
  add(value: object): Promise<void> {
    this.#waiting.push(`${JSON.stringify(value)}\n`)
    // One write takes all that came while the one before it went on.
    this.#writing ??= this.#writeAll()
    return this.#writing
  }

  async #writeAll(): Promise<void> {
    try {
      // Those that come in the same turn go together.
      await Promise.resolve()
      await this.#write()
    } finally {
      // At once: what comes from now on needs a write of its own.
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

/** Bytes up to the end of the last whole line. */
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
