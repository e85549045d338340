import { appendFileSync, constants } from 'node:fs'
import { type FileHandle, mkdir, open, readdir, rename, stat, unlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { errorMessage } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'

/*
 * An append-only log of lines. Lines are written in order, in batches, and without delaying the requests that they
 * describe. Libraries that rotate files stop at their first error or drop what they could not write. This log survives
 * a full disk or a missing folder, and the file then says how many lines are missing.
 */

/** How long lines are collected before they are written, in milliseconds. */
const BATCH_TIME_MS = 200
/** Retry interval while the files cannot be written, in milliseconds. */
const RETRY_TIME = 1000
/** Maximum characters of lines in memory during that time. Further lines are lost. */
const MAX_WAITING = 4 * 2 ** 20
const DAY = 86_400_000
/** The current file is `audit.jsonl`. Full files are renamed to `audit-<time>.jsonl`. */
const NAME = 'audit'

const lostText = (lost: number) => (lost === 1 ? '1 line was lost' : `${lost} lines were lost`)

export interface LineLogLimits {
  /** Size in bytes at which a new file is started. A new one is also started every day. */
  maxSize: number
  keep: number
  maxFiles: number
}

export class LineLog {
  readonly #folder: string
  readonly #path: string
  #limits: LineLogLimits
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'error'>
  readonly #lossLine: (lost: number) => string
  #waiting: string[] = []
  #length = 0
  /** Lines dropped because too many were waiting. */
  #lost = 0
  #timer: NodeJS.Timeout | undefined
  #working: Promise<void> = Promise.resolve()
  #fault = ''
  #closed = false

  /** @param lossLine returns the line that reports how many lines could not be written */
  constructor(
    folder: string,
    limits: LineLogLimits,
    log: Pick<FastifyBaseLogger, 'info' | 'error'>,
    lossLine: (lost: number) => string
  ) {
    this.#folder = folder
    this.#path = join(folder, `${NAME}.jsonl`)
    this.#limits = limits
    this.#log = log
    this.#lossLine = lossLine
  }

  limit(limits: LineLogLimits): void {
    this.#limits = limits
    void this.tidy()
  }

  /** Adds a line, given without its line break. Never fails; write errors are logged. */
  push(line: string): void {
    if (this.#closed) {
      try {
        // Synchronous, because the process is about to exit.
        appendFileSync(this.#path, `${line}\n`, { mode: 0o600 })
      } catch (error) {
        this.#log.error(`A line is lost: ${this.#path} cannot be written: ${errorMessage(error)}.`)
      }
      return
    }
    if (this.#length + line.length > MAX_WAITING) {
      this.#lost++
      return
    }
    this.#waiting.push(line)
    this.#length += line.length
    this.#schedule(this.#fault === '' ? BATCH_TIME_MS : RETRY_TIME)
  }

  /** Resolves once all lines are in the files or cannot be written for now. Never rejects. */
  flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    return this.#inTurn(() => this.#write())
  }

  /** Starts a new file if the current one is too old, and deletes expired files. */
  tidy(): Promise<void> {
    return this.#inTurn(async () => {
      const { handle, began } = await this.#open()
      await handle.close()
      if (Date.now() - began >= DAY) await this.#rotate()
      await this.#prune()
    })
  }

  /** Writes the remaining lines and closes the file. Lines that cannot be written are lost, and logged as lost. */
  async close(): Promise<void> {
    // Requests that end during the write may add lines.
    do await this.flush()
    while (this.#fault === '' && this.#waiting.length > 0)
    this.#closed = true
    const lost = this.#lost + this.#waiting.length
    if (lost > 0) this.#log.error(`${lostText(lost)}: ${this.#path} cannot be written (${this.#fault}).`)
  }

  async files(): Promise<string[]> {
    const full = await this.#full()
    return [this.#path, ...full.reverse().map(file => join(this.#folder, file))]
  }

  #schedule(time: number): void {
    this.#timer ??= setTimeout(() => void this.flush(), time).unref()
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    this.#working = this.#working.then(work).catch(error => this.#fail(error))
    return this.#working
  }

  #fail(error: unknown): void {
    const fault = errorMessage(error)
    if (this.#fault === '' && !this.#closed) {
      this.#log.error(
        `${this.#path} cannot be written: ${fault}. Up to ${formatBytes(MAX_WAITING)} of lines are held in memory until it can be; further lines are only counted.`
      )
    }
    this.#fault = fault
    if (!this.#closed && this.#waiting.length > 0) this.#schedule(RETRY_TIME)
  }

  async #write(): Promise<void> {
    if (this.#waiting.length === 0 && this.#lost === 0) return
    // More lines may arrive during the write.
    const lines = [...this.#waiting]
    const lost = this.#lost
    const text = Buffer.from([...lines, ...(lost > 0 ? [this.#lossLine(lost)] : []), ''].join('\n'))
    // Opened each time, because someone may have moved or removed it.
    const { handle, began, size } = await this.#open()
    try {
      await handle.appendFile(text)
    } catch (error) {
      // The write may have been partial. Remove it, since the same lines are written again.
      await handle.truncate(size).catch(() => undefined)
      throw error
    } finally {
      await handle.close()
    }
    this.#waiting = this.#waiting.slice(lines.length)
    this.#length -= lines.reduce((sum, line) => sum + line.length, 0)
    this.#lost -= lost
    if (this.#fault !== '') {
      this.#fault = ''
      this.#log.info(`${this.#path} can be written again; ${lostText(lost)}.`)
    }
    if (size + text.length >= this.#limits.maxSize || Date.now() - began >= DAY) {
      await this.#rotate()
      await this.#prune()
    }
  }

  /** Opens the file. `began` is when its first line was written, in milliseconds since the epoch. */
  async #open(): Promise<{ handle: FileHandle; size: number; began: number }> {
    await mkdir(this.#folder, { recursive: true, mode: 0o700 })
    const { O_RDWR, O_APPEND, O_CREAT, O_NOFOLLOW = 0, O_NONBLOCK = 0 } = constants
    const handle = await open(this.#path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0o600)
    try {
      const found = await handle.stat()
      if (!found.isFile()) throw new Error('it is not a regular file')
      await handle.chmod(0o600)
      const { size, birthtimeMs, mtimeMs } = found
      if (size === 0) return { handle, size, began: Date.now() }
      // Some file systems do not record when a file was created.
      const began = birthtimeMs > 0 ? birthtimeMs : mtimeMs
      const { buffer } = await handle.read(Buffer.alloc(1), 0, 1, size - 1)
      if (buffer[0] === 10) return { handle, size, began }
      // A crash truncated the last line.
      await handle.write('\n')
      return { handle, size: size + 1, began }
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  async #rotate(): Promise<void> {
    const taken = new Set(await this.#full())
    // Names sort by time, and two files may fill up within one millisecond.
    let at = Date.now()
    const newName = () => `${NAME}-${new Date(at).toISOString().replaceAll(':', '-')}.jsonl`
    while (taken.has(newName())) at++
    await rename(this.#path, join(this.#folder, newName()))
  }

  async #prune(): Promise<void> {
    const { keep, maxFiles } = this.#limits
    const full = await this.#full()
    for (const [at, file] of full.entries()) {
      const path = join(this.#folder, file)
      const found = await stat(path).catch(() => undefined)
      const isOld = found !== undefined && Date.now() - found.mtimeMs > keep * DAY
      if (isOld || full.length - at > maxFiles) await unlink(path)
    }
  }

  async #full(): Promise<string[]> {
    const files = await readdir(this.#folder).catch(() => [])
    return files.filter(file => file.startsWith(`${NAME}-`) && file.endsWith('.jsonl')).sort()
  }
}
