import {
  closeSync,
  fdatasync as fdatasyncCallback,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readSync,
  writeSync
} from 'node:fs'
import { open, rename } from 'node:fs/promises'
import { dirname } from 'node:path'
import { promisify } from 'node:util'
import { crc32 } from 'node:zlib'
import { ChunkMap, type Span } from './chunks.ts'
import {
  continues,
  type JournalSubject,
  journalText,
  loadJournal,
  partPath,
  removeJournal,
  removePartial,
  saveJournal
} from './journal.ts'

const READ = 1024 * 1024
const fdatasync = promisify(fdatasyncCallback)

/** The partial data of a file, with their journal. */
export class PartFile {
  readonly target: string
  readonly descriptor: number
  /** Undefined while the size is unknown. */
  map: ChunkMap | undefined
  /** The identity of the content at its source, for files without a digest. */
  place: string | undefined
  readonly #subject: Omit<JournalSubject, 'size' | 'place'>
  #saving: Promise<void> = Promise.resolve()
  #saved = ''
  #closed = false
  /** A flush to the disk that is running. */
  #syncing: Promise<void> | undefined
  #syncError: { error: unknown } | undefined

  private constructor(target: string, descriptor: number, subject: Omit<JournalSubject, 'size' | 'place'>) {
    this.target = target
    this.descriptor = descriptor
    this.#subject = subject
  }

  /** Opens the partial data of a file, or creates it. */
  static async open(
    target: string,
    wanted: Omit<JournalSubject, 'size' | 'place'> & { size: number | undefined }
  ): Promise<PartFile> {
    const { size, ...subject } = wanted
    mkdirSync(dirname(target), { recursive: true })
    const journal = await loadJournal(target)
    const known = journal && continues(journal.subject, wanted) ? journal : undefined
    if (!known) await removeJournal(target)
    const part = new PartFile(target, openSync(partPath(target), known ? 'r+' : 'w+'), subject)
    if (known) {
      part.map = known.map
      part.place = known.subject.place
      part.#dropDamaged()
    } else if (size !== undefined) part.setSize(size)
    return part
  }

  get path(): string {
    return partPath(this.target)
  }

  setSize(size: number): ChunkMap {
    this.map = new ChunkMap(size)
    return this.map
  }

  /** Discards all data. */
  reset(): void {
    ftruncateSync(this.descriptor, 0)
    this.map = this.map && new ChunkMap(this.map.size)
  }

  /** Writes the journal. */
  save(): Promise<void> {
    // One at a time: each write replaces the same file.
    this.#saving = this.#saving.catch(() => {}).then(() => this.#save())
    return this.#saving
  }

  async #save(): Promise<void> {
    // Data without checksums could not be trusted after a restart.
    if (!this.map?.hasCrcs || this.#closed) return
    const text = journalText({ ...this.#subject, size: this.map.size, place: this.place }, this.map)
    if (text === this.#saved) return
    // Flush as we go, so that the end of a large file does not have to wait for all of it.
    this.#syncing ??= this.#sync()
    await saveJournal(this.target, text)
    this.#saved = text
  }

  async #sync(): Promise<void> {
    try {
      await fdatasync(this.descriptor)
    } catch (error) {
      // Linux reports a write error only once: keep it for `finish`.
      this.#syncError = { error }
    }
    this.#syncing = undefined
  }

  /** Closes the descriptor once nothing uses it. */
  async #release(): Promise<void> {
    await this.#saving.catch(() => {})
    this.#closed = true
    await this.#syncing
    closeSync(this.descriptor)
  }

  /** Closes the file; partial data stay. */
  async close(): Promise<void> {
    if (this.#closed) return
    try {
      await this.save()
    } finally {
      await this.#release()
    }
  }

  /** Removes the partial data and the journal. */
  async discard(): Promise<void> {
    if (!this.#closed) await this.#release()
    await removePartial(this.target)
  }

  /** Flushes the file and renames it to its target. */
  async finish(): Promise<void> {
    const size = this.map!.size
    if (fstatSync(this.descriptor).size !== size) ftruncateSync(this.descriptor, size)
    await this.#release()
    if (this.#syncError) throw this.#syncError.error
    await synced(this.path, 'r+')
    await rename(this.path, this.target)
    await syncFolder(dirname(this.target))
    await removeJournal(this.target)
  }

  /** Incomplete chunks are continued at once, so they are checked first; complete ones are read for the digest anyway. */
  #dropDamaged(): void {
    const map = this.map!
    for (let chunk = 0; chunk < map.count; chunk++) {
      if (map.have[chunk] === 0 || map.isComplete(chunk)) continue
      if (crcOnDisk(this.descriptor, map.start(chunk), map.have[chunk]!) !== map.crc[chunk]) map.drop(chunk)
    }
  }
}

function crcOnDisk(descriptor: number, start: number, length: number): number | undefined {
  const buffer = Buffer.allocUnsafe(Math.min(READ, length))
  let crc = 0
  for (let at = 0; at < length; ) {
    const bytes = readSync(descriptor, buffer, 0, Math.min(buffer.length, length - at), start + at)
    if (bytes === 0) return undefined
    crc = crc32(buffer.subarray(0, bytes), crc)
    at += bytes
  }
  return crc
}

async function synced(path: string, flags: string): Promise<void> {
  const handle = await open(path, flags)
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** Makes a rename durable; Windows does not support it and does not need it. */
async function syncFolder(path: string): Promise<void> {
  if (process.platform !== 'win32') await synced(path, 'r')
}

/** Bytes that are collected before they are written: few enough to be still in the processor's cache. */
export const WRITE_SIZE = 256 * 1024

/**
 * Writes the bytes of one span to their position in the file. Writing is synchronous: it is mostly a copy to the page
 * cache, and where the disk is slower than the network, the sockets must wait anyway.
 */
export class PartWriter {
  readonly span: Span
  readonly #descriptor: number
  readonly #map: ChunkMap
  readonly #readSize: number
  readonly #onWritten: (bytes: number) => void
  /** Its first byte belongs at `#position` of the file. */
  readonly #buffer: Buffer
  #position: number
  #filled = 0
  #written = 0

  constructor(
    descriptor: number,
    map: ChunkMap,
    span: Span,
    buffer: Buffer,
    readSize: number,
    onWritten: (bytes: number) => void
  ) {
    this.#descriptor = descriptor
    this.#map = map
    this.span = span
    this.#buffer = buffer
    this.#readSize = readSize
    this.#onWritten = onWritten
    this.#position = map.start(span.at) + map.have[span.at]!
  }

  /** Position of the next byte in the file. */
  get position(): number {
    return this.#position + this.#filled
  }

  /** Where the next bytes go: up to the end of a chunk or of an aligned block. */
  room(): Buffer {
    const end = Math.min(this.#map.end(this.span.at), this.#position + WRITE_SIZE - (this.#position % WRITE_SIZE))
    const room = end - this.position
    return this.#buffer.subarray(this.#filled, this.#filled + Math.min(room, this.#readSize))
  }

  /** Bytes were put into the room. @returns false when the span is complete */
  filled(length: number): boolean {
    this.#filled += length
    const atEnd = this.position === this.#map.end(this.span.at)
    if (atEnd || this.position % WRITE_SIZE === 0) {
      this.flush()
      this.#position += this.#filled
      this.#filled = 0
      this.#written = 0
    }
    if (atEnd) this.span.at += 1
    return this.span.at < this.span.to
  }

  /**
   * Writes what has been collected. The buffer is not moved: a read into it may be running.
   * @throws the error of the file system, such as ENOSPC, after what could be written was counted
   */
  flush(): void {
    const chunk = this.span.at
    while (this.#written < this.#filled) {
      const length = writeSync(
        this.#descriptor,
        this.#buffer,
        this.#written,
        this.#filled - this.#written,
        this.#position + this.#written
      )
      const bytes = this.#buffer.subarray(this.#written, this.#written + length)
      this.#map.add(chunk, length, crc32(bytes, this.#map.crc[chunk]!))
      this.#written += length
      this.#onWritten(length)
    }
  }
}

/** Writes a file of unknown length from its start. */
export class StreamWriter {
  readonly #descriptor: number
  readonly #buffer: Buffer
  #filled = 0
  /** Bytes on disk. */
  written = 0

  constructor(descriptor: number, buffer: Buffer) {
    this.#descriptor = descriptor
    this.#buffer = buffer
  }

  room(): Buffer {
    return this.#buffer.subarray(this.#filled, WRITE_SIZE)
  }

  filled(length: number): boolean {
    this.#filled += length
    if (this.#filled === WRITE_SIZE) this.flush()
    return true
  }

  /** Called at the end. @throws the error of the file system */
  flush(): void {
    let at = 0
    while (at < this.#filled) {
      const length = writeSync(this.#descriptor, this.#buffer, at, this.#filled - at, this.written)
      this.written += length
      at += length
    }
    this.#filled = 0
  }
}
