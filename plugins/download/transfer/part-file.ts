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

/** A file's partial data with their journal. */
export class PartFile {
  readonly target: string
  readonly descriptor: number
  /** Undefined while the size is unknown. */
  map: ChunkMap | undefined
  /** Names the content at its place, for files without a digest. */
  place: string | undefined
  readonly #subject: Omit<JournalSubject, 'size' | 'place'>
  #saving: Promise<void> = Promise.resolve()
  #saved = ''
  #closed = false
  /** Data on their way to the disk. */
  #syncing: Promise<void> | undefined
  #syncError: { error: unknown } | undefined

  private constructor(target: string, descriptor: number, subject: Omit<JournalSubject, 'size' | 'place'>) {
    this.target = target
    this.descriptor = descriptor
    this.#subject = subject
  }

  /** Opens what is there of a file, or begins it. */
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

  /** Begins anew. */
  reset(): void {
    ftruncateSync(this.descriptor, 0)
    this.map = this.map && new ChunkMap(this.map.size)
  }

  /** Notes in the journal what is on disk. */
  save(): Promise<void> {
    // One after the other: they replace the same file.
    this.#saving = this.#saving.catch(() => {}).then(() => this.#save())
    return this.#saving
  }

  async #save(): Promise<void> {
    // What has no checksums could not be trusted later.
    if (!this.map?.hasCrcs || this.#closed) return
    const text = journalText({ ...this.#subject, size: this.map.size, place: this.place }, this.map)
    if (text === this.#saved) return
    // Little by little, so that not all of a large file is left for its end.
    this.#syncing ??= this.#sync()
    await saveJournal(this.target, text)
    this.#saved = text
  }

  async #sync(): Promise<void> {
    try {
      await fdatasync(this.descriptor)
    } catch (error) {
      // Linux tells it only once.
      this.#syncError = { error }
    }
    this.#syncing = undefined
  }

  /** Closes the descriptor when nothing uses it any longer. */
  async #release(): Promise<void> {
    await this.#saving.catch(() => {})
    this.#closed = true
    await this.#syncing
    closeSync(this.descriptor)
  }

  /** Closes it; partial data stay. */
  async close(): Promise<void> {
    if (this.#closed) return
    try {
      await this.save()
    } finally {
      await this.#release()
    }
  }

  /** Removes it with its journal. */
  async discard(): Promise<void> {
    if (!this.#closed) await this.#release()
    await removePartial(this.target)
  }

  /** Makes it the target, for good. */
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

  /** Begun chunks are continued at once, so that they are read back first; whole ones are read for the digest anyway. */
  #dropDamaged(): void {
    const map = this.map!
    for (let chunk = 0; chunk < map.count; chunk++) {
      if (map.have[chunk] === 0 || map.isWhole(chunk)) continue
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

/** Makes a rename last; Windows cannot and need not. */
async function syncFolder(path: string): Promise<void> {
  if (process.platform !== 'win32') await synced(path, 'r')
}

/** Bytes gathered before they are written: few enough to be still in the processor's cache by then. */
export const GATHERED = 256 * 1024

/**
 * Takes the bytes of one span and writes them where they belong. Writing is synchronous: it mostly is a copy to the page
 * cache, and where the disk is slower than the line, the sockets wait.
 */
export class PartWriter {
  readonly span: Span
  readonly #descriptor: number
  readonly #map: ChunkMap
  readonly #readSize: number
  readonly #onWritten: (bytes: number) => void
  /** Memory; its first byte belongs at `#position`. */
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

  /** Where the next byte belongs. */
  get position(): number {
    return this.#position + this.#filled
  }

  /** What can be taken without passing the end of a chunk; blocks of the file are filled whole. */
  room(): Buffer {
    const end = Math.min(this.#map.end(this.span.at), this.#position + GATHERED - (this.#position % GATHERED))
    const room = end - this.position
    return this.#buffer.subarray(this.#filled, this.#filled + Math.min(room, this.#readSize))
  }

  /** So many bytes were put in the room. False when the span is done. */
  took(length: number): boolean {
    this.#filled += length
    const atEnd = this.position === this.#map.end(this.span.at)
    if (atEnd || this.position % GATHERED === 0) {
      this.flush()
      this.#position += this.#filled
      this.#filled = 0
      this.#written = 0
    }
    if (atEnd) this.span.at += 1
    return this.span.at < this.span.to
  }

  /**
   * Writes what is gathered. The memory stays as it is: a read into it may be under way.
   * @throws what the file system says, such as ENOSPC; what could be written is noted
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

/** Writes a file of which nobody says how long it is, from its start. */
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
    return this.#buffer.subarray(this.#filled, GATHERED)
  }

  took(length: number): boolean {
    this.#filled += length
    if (this.#filled === GATHERED) this.flush()
    return true
  }

  /** To be called at the end. @throws what the file system says */
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
