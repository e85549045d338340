import { appendFileSync, constants, type Stats } from 'node:fs'
import { type FileHandle, mkdir, open, readdir, rename, stat, unlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { errorMessage } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'

/*
 * Lines that are only ever added to files, in order, in batches and behind the requests that they tell of. A library that
 * rotates files stops at its first error or forgets what it could not write; here the disk may be full or the folder gone
 * for a while, and the file afterwards says how many lines are missing.
 */

/** Milliseconds in which lines gather to one write. */
const BATCH_TIME = 200
/** Milliseconds between attempts while the files cannot be written. */
const RETRY_TIME = 1000
/** Characters of lines that are kept meanwhile; what comes after them is lost. */
const MAX_WAITING = 4 * 2 ** 20
const DAY = 86_400_000

const lostText = (lost: number) => (lost === 1 ? '1 line was lost' : `${lost} lines were lost`)

/** How much is kept. */
export interface LineLogLimits {
  /** Bytes at which a new file is begun; one is begun each day too. */
  maxSize: number
  /** Days that full files are kept. */
  keep: number
  /** Most full files. */
  maxFiles: number
}

export interface LineLogOptions {
  folder: string
  /** The file is `<name>.jsonl`; full ones are beside it as `<name>-<time>.jsonl`. */
  name: string
  limits: LineLogLimits
  log: Pick<FastifyBaseLogger, 'info' | 'error' | 'warn'>
  /** The line that says how many lines could not be written. */
  lossLine(lost: number): string
}

interface OpenFile {
  handle: FileHandle
  ino: number
  size: number
  /** When its first line was written; milliseconds since the epoch. */
  began: number
}

export class LineLog {
  readonly #options: LineLogOptions
  #limits: LineLogLimits
  readonly #path: string
  #waiting: string[] = []
  #length = 0
  /** Lines that could not be kept for writing. */
  #lost = 0
  #file: OpenFile | undefined
  #timer: NodeJS.Timeout | undefined
  #working: Promise<void> = Promise.resolve()
  #fault = ''
  #closed = false

  constructor(options: LineLogOptions) {
    this.#options = options
    this.#limits = options.limits
    this.#path = join(options.folder, `${options.name}.jsonl`)
  }

  /** Keeps more or less from now on. */
  limit(limits: LineLogLimits): void {
    this.#limits = limits
    void this.tidy()
  }

  /** Takes a line without its end. Never fails; what goes wrong behind it is logged. */
  push(line: string): void {
    if (this.#closed) {
      this.#pushLate(line)
      return
    }
    if (this.#length + line.length > MAX_WAITING) {
      this.#lost++
      return
    }
    this.#waiting.push(line)
    this.#length += line.length
    this.#schedule(this.#fault === '' ? BATCH_TIME : RETRY_TIME)
  }

  /** Settles once all lines are in the files, or cannot be written now. Never rejects. */
  flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    return this.#inTurn(() => this.#write())
  }

  /** Begins a new file where the present one is too large or too old, and removes those that need not be kept. */
  tidy(): Promise<void> {
    return this.#inTurn(async () => {
      this.#file ??= await this.#open()
      if (Date.now() - this.#file.began >= DAY) await this.#rotate()
      await this.#prune()
    })
  }

  /** Writes what waits and closes the file. What cannot be written now is lost, and logged as such. */
  async close(): Promise<void> {
    // What ends while lines are written adds some.
    do await this.flush()
    while (this.#fault === '' && this.#waiting.length > 0)
    this.#closed = true
    const lost = this.#lost + this.#waiting.length
    if (lost > 0) this.#options.log.error(`${lostText(lost)}: ${this.#path} cannot be written (${this.#fault}).`)
    await this.#release()
  }

  /** Paths of all files, the newest first. */
  async files(): Promise<string[]> {
    const full = await this.#full()
    return [this.#path, ...full.reverse().map(file => join(this.#options.folder, file))]
  }

  /** What ends behind everything else has no time to wait. */
  #pushLate(line: string): void {
    try {
      appendFileSync(this.#path, `${line}\n`, { mode: 0o600 })
    } catch (error) {
      this.#options.log.error(`A line is lost: ${this.#path} cannot be written: ${errorMessage(error)}.`)
    }
  }

  #schedule(time: number): void {
    this.#timer ??= setTimeout(() => void this.flush(), time).unref()
  }

  /** One thing at a time. */
  #inTurn(work: () => Promise<void>): Promise<void> {
    this.#working = this.#working.then(work).catch(error => this.#fail(error))
    return this.#working
  }

  #fail(error: unknown): void {
    const fault = errorMessage(error)
    if (this.#fault === '' && !this.#closed) {
      this.#options.log.error(
        `${this.#path} cannot be written: ${fault}. Lines wait (as many as fit into ${formatBytes(MAX_WAITING)}) until it can be; later ones are counted.`
      )
    }
    this.#fault = fault
    if (!this.#closed && this.#waiting.length > 0) this.#schedule(RETRY_TIME)
  }

  async #write(): Promise<void> {
    if (this.#waiting.length === 0 && this.#lost === 0) return
    const file = await this.#opened()
    // Others come meanwhile.
    const lines = [...this.#waiting]
    const lost = this.#lost
    const text = [...lines, ...(lost > 0 ? [this.#options.lossLine(lost)] : []), ''].join('\n')
    const bytes = Buffer.from(text)
    try {
      await writeAll(file.handle, bytes)
    } catch (error) {
      // A part of it may be there. The same lines come once more.
      await file.handle.truncate(file.size).catch(() => this.#release())
      throw error
    }
    file.size += bytes.length
    this.#waiting = this.#waiting.slice(lines.length)
    this.#length -= lines.reduce((sum, line) => sum + line.length, 0)
    this.#lost -= lost
    if (this.#fault !== '') {
      this.#fault = ''
      this.#options.log.info(`${this.#path} is written again; ${lostText(lost)}.`)
    }
    if (file.size >= this.#limits.maxSize || Date.now() - file.began >= DAY) {
      await this.#rotate()
      await this.#prune()
    }
  }

  /** The file, anew where somebody has moved or removed it. */
  async #opened(): Promise<OpenFile> {
    if (this.#file) {
      const found = await stat(this.#path).catch(() => undefined)
      if (found?.ino === this.#file.ino) return this.#file
      await this.#release()
    }
    this.#file = await this.#open()
    return this.#file
  }

  async #open(): Promise<OpenFile> {
    await mkdir(this.#options.folder, { recursive: true, mode: 0o700 })
    const { O_RDWR, O_APPEND, O_CREAT, O_NOFOLLOW = 0, O_NONBLOCK = 0 } = constants
    const handle = await open(this.#path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0o600)
    try {
      const found = await handle.stat()
      if (!found.isFile()) throw new Error('it is no file')
      await handle.chmod(0o600)
      const ended = await this.#endLine(handle, found)
      return { handle, ino: found.ino, size: found.size + ended, began: found.size > 0 ? beganOf(found) : Date.now() }
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  /** Ends a line that a kill left in its middle. @returns the bytes that this took */
  async #endLine(handle: FileHandle, { size }: Stats): Promise<number> {
    if (size === 0) return 0
    const { buffer } = await handle.read(Buffer.alloc(1), 0, 1, size - 1)
    if (buffer[0] === 10) return 0
    await handle.write('\n')
    return 1
  }

  async #rotate(): Promise<void> {
    const { folder, name } = this.#options
    if (!this.#file || this.#file.size === 0) return
    await this.#release()
    const taken = new Set(await this.#full())
    // Names sort by time; two files may be full within one millisecond.
    let at = Date.now()
    const nameOf = () => `${name}-${new Date(at).toISOString().replaceAll(':', '-')}.jsonl`
    while (taken.has(nameOf())) at++
    await rename(this.#path, join(folder, nameOf()))
  }

  async #prune(): Promise<void> {
    const { folder } = this.#options
    const { keep, maxFiles } = this.#limits
    const full = await this.#full()
    for (const [at, file] of full.entries()) {
      const path = join(folder, file)
      const found = await stat(path).catch(() => undefined)
      const isOld = found !== undefined && Date.now() - found.mtimeMs > keep * DAY
      if (isOld || full.length - at > maxFiles) await unlink(path)
    }
  }

  /** Names of the full files, the oldest first. */
  async #full(): Promise<string[]> {
    const { folder, name } = this.#options
    const files = await readdir(folder).catch(() => [])
    return files.filter(file => file.startsWith(`${name}-`) && file.endsWith('.jsonl')).sort()
  }

  async #release(): Promise<void> {
    const file = this.#file
    this.#file = undefined
    await file?.handle.close()
  }
}

/** Some file systems do not know when a file was made. */
const beganOf = ({ birthtimeMs, mtimeMs }: Stats) => (birthtimeMs > 0 ? birthtimeMs : mtimeMs)

async function writeAll(handle: FileHandle, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const { bytesWritten } = await handle.write(bytes, at)
    at += bytesWritten
  }
}
