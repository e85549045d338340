import { closeSync, fdatasync, fstatSync, ftruncateSync, mkdirSync, openSync, readSync, writeSync } from 'node:fs'
import { access, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { promisify } from 'node:util'
import { crc32 } from 'node:zlib'
import { whenMissing } from '../../../../core/errors.ts'
import { isObject, parseAnyJson } from '../../../../core/system/json-object.ts'
import { synced } from '../../../../core/system/synced.ts'

/** Keeps a file's journal small. */
const MAX_CHUNKS = 4096
const MIN_CHUNK_BYTES = 1024 * 1024

/** Returns the size of a file's chunks: a power of two, large enough to limit their number. */
export function chunkSizeFor(size: number): number {
  let chunk = MIN_CHUNK_BYTES
  while (chunk * MAX_CHUNKS < size) chunk *= 2
  return chunk
}

/** Which bytes of a file are on disk. A chunk is written from its start, so its state is a length and a CRC-32. */
export class ChunkMap {
  readonly size: number
  readonly chunkSize: number
  readonly count: number
  readonly have: Float64Array
  readonly crc: Uint32Array
  completed = 0

  constructor(size: number, chunkSize: number = chunkSizeFor(size)) {
    this.size = size
    this.chunkSize = chunkSize
    this.count = Math.ceil(size / chunkSize)
    this.have = new Float64Array(this.count)
    this.crc = new Uint32Array(this.count)
  }

  start(chunk: number): number {
    return chunk * this.chunkSize
  }

  end(chunk: number): number {
    return Math.min(this.size, (chunk + 1) * this.chunkSize)
  }

  isComplete(chunk: number): boolean {
    return this.have[chunk]! === this.end(chunk) - this.start(chunk)
  }

  get complete(): boolean {
    return this.completed === this.size
  }

  add(chunk: number, bytes: number, crc: number): void {
    this.have[chunk]! += bytes
    this.crc[chunk] = crc
    this.completed += bytes
  }

  drop(chunk: number): void {
    this.completed -= this.have[chunk]!
    this.have[chunk] = 0
    this.crc[chunk] = 0
  }
}

/** Chunks that one connection downloads with one request, from `at` up to `to` (exclusive). */
export interface Span {
  at: number
  /** The end, exclusive. Other connections may take chunks from the end of the span. */
  to: number
}

const MIN_REQUEST_BYTES = 8 * 1024 * 1024
/** A second connection loses the data in flight on the first one, so it must download more than this. */
const MIN_SHARED_BYTES = 4 * 1024 * 1024

/** Returns the bytes of a connection's next request: its fair share of the missing ones, up to `worthwhile`. */
export function requestSize(map: ChunkMap, taken: readonly Span[], connections: number, worthwhile: number): number {
  const claimed = taken.reduce((sum, span) => sum + spanBytes(map, span), 0)
  const share = (map.size - map.completed - claimed) / connections
  return Math.max(MIN_REQUEST_BYTES, Math.min(worthwhile, share))
}

export function spanBytes(map: ChunkMap, span: Span): number {
  if (span.at >= span.to) return 0
  return map.end(span.to - 1) - map.start(span.at) - map.have[span.at]!
}

/** Returns the first missing chunks that no request covers: up to `bytes`, but at least one chunk. */
export function freeSpan(map: ChunkMap, taken: readonly Span[], bytes: number): Span | undefined {
  const isFree = (chunk: number) => !map.isComplete(chunk) && !taken.some(({ at, to }) => chunk >= at && chunk < to)
  let at = 0
  while (at < map.count && !isFree(at)) at += 1
  if (at === map.count) return undefined
  const span = { at, to: at + 1 }
  // A partial chunk can only be continued at the start of a request.
  while (span.to < map.count && spanBytes(map, span) < bytes && map.have[span.to] === 0 && isFree(span.to)) span.to += 1
  return span
}

/** Takes the second half of the longest span for an idle connection. Undefined if that span is short. */
export function stolenSpan(map: ChunkMap, taken: readonly Span[]): Span | undefined {
  const longest = [...taken].sort((a, b) => spanBytes(map, b) - spanBytes(map, a))[0]
  if (!longest || longest.to - longest.at < 2 || spanBytes(map, longest) < MIN_SHARED_BYTES) return undefined
  const to = longest.to
  longest.to = longest.at + Math.ceil((to - longest.at) / 2)
  return { at: longest.to, to }
}

// ---- journal -------------------------------------------------------------------------------------------------------

/** Identifies the content of a partial file. Partial data of other content is discarded. */
interface JournalSubject {
  identity: string
  path: string
  size: number
  sha256: string | undefined
  gitSha1: string | undefined
  /** The ETag or other identity of the content at its source, for files without a digest. */
  place: string | undefined
}

/** The requested content. Its size may be unknown, and its place is compared when the server has answered. */
type WantedSubject = Omit<JournalSubject, 'size' | 'place'> & { size: number | undefined }

const VERSION = 1
const NONE = '--------'
const HEX = 16

const partPath = (target: string) => `${target}.part`
const journalPath = (target: string) => `${target}.part.json`

export function journalText(subject: JournalSubject, map: ChunkMap): string {
  let whole = ''
  const begun: [chunk: number, length: number, crc: string][] = []
  for (let chunk = 0; chunk < map.count; chunk++) {
    const crc = map.crc[chunk]!.toString(HEX).padStart(NONE.length, '0')
    whole += map.isComplete(chunk) ? crc : NONE
    if (!map.isComplete(chunk) && map.have[chunk]! > 0) begun.push([chunk, map.have[chunk]!, crc])
  }
  const { chunkSize, completed } = map
  return JSON.stringify({ version: VERSION, ...subject, chunkSize, completed, whole, begun })
}

/** Parses a journal. Returns undefined if it is damaged or of another version. */
export function parseJournal(text: string): { subject: JournalSubject; map: ChunkMap } | undefined {
  const value = parseAnyJson(text)
  if (!isObject(value) || value.version !== VERSION) return undefined
  const { identity, path, size, sha256, gitSha1, place, chunkSize, whole, begun } = value
  const isCount = (number: unknown): number is number => Number.isSafeInteger(number) && (number as number) >= 0
  const isText = (text: unknown): text is string => typeof text === 'string'
  if (![identity, path, sha256 ?? '', gitSha1 ?? '', place ?? ''].every(isText)) return undefined
  if (!isCount(size) || !isCount(chunkSize) || chunkSize < 4096 || size / chunkSize > 2 ** 20) return undefined
  const map = new ChunkMap(size, chunkSize)
  const checksums = isText(whole) ? (whole.match(/[0-9a-f]{8}|-{8}/g) ?? []) : []
  if (checksums.length !== map.count || checksums.join('') !== whole || !Array.isArray(begun)) return undefined
  for (const [chunk, crc] of checksums.entries()) {
    if (crc !== NONE) map.add(chunk, map.end(chunk) - map.start(chunk), Number.parseInt(crc, HEX))
  }
  for (const entry of begun) {
    const [chunk, length, crc] = Array.isArray(entry) ? entry : []
    const isPart = map.have[chunk] === 0 && isCount(length) && length < map.end(chunk) - map.start(chunk)
    if (!isPart || !isText(crc)) return undefined
    map.add(chunk, length, Number.parseInt(crc, HEX))
  }
  return { subject: { identity, path, size, sha256, gitSha1, place } as JournalSubject, map }
}

export const continues = (subject: JournalSubject, wanted: WantedSubject): boolean =>
  (['identity', 'path', 'sha256', 'gitSha1'] as const).every(field => subject[field] === wanted[field]) &&
  (wanted.size ?? subject.size) === subject.size

/** Reads the journal of a partial file. Returns undefined if there is nothing to continue. */
async function loadJournal(target: string): Promise<ReturnType<typeof parseJournal>> {
  const read = async () => {
    await access(partPath(target))
    return parseJournal(await readFile(journalPath(target), 'utf8'))
  }
  return await read().catch(whenMissing)
}

async function removeJournal(target: string): Promise<void> {
  await rm(journalPath(target), { force: true })
  await rm(`${journalPath(target)}.new`, { force: true })
}

export const partialBytes = async (target: string): Promise<number> => (await loadJournal(target))?.map.completed ?? 0

export async function removePartial(target: string): Promise<void> {
  await rm(partPath(target), { force: true })
  await removeJournal(target)
}

// ---- partial data --------------------------------------------------------------------------------------------------

const READ_BYTES = 1024 * 1024
const FLUSH_BYTES = 32 * 1024 * 1024

export class PartFile {
  readonly descriptor: number
  map: ChunkMap | undefined
  place: string | undefined
  readonly #target: string
  readonly #subject: WantedSubject
  #saving: Promise<void> = Promise.resolve()
  #saved = ''
  #flushing: Promise<void> | undefined
  /** The completed bytes when the last flush started. */
  #flushed = 0
  #closed = false

  private constructor(target: string, descriptor: number, subject: WantedSubject) {
    this.#target = target
    this.descriptor = descriptor
    this.#subject = subject
  }

  static async open(target: string, wanted: WantedSubject): Promise<PartFile> {
    mkdirSync(dirname(target), { recursive: true })
    const journal = await loadJournal(target)
    const known = journal && continues(journal.subject, wanted) ? journal : undefined
    if (!known) await removeJournal(target)
    const part = new PartFile(target, openSync(partPath(target), known ? 'r+' : 'w+'), wanted)
    if (known) {
      part.map = known.map
      part.place = known.subject.place
      part.#dropDamaged()
    } else if (wanted.size !== undefined) part.setSize(wanted.size)
    return part
  }

  get path(): string {
    return partPath(this.#target)
  }

  setSize(size: number): void {
    this.map = new ChunkMap(size)
  }

  reset(): void {
    ftruncateSync(this.descriptor, 0)
    if (this.map) this.setSize(this.map.size)
  }

  save(): Promise<void> {
    // One at a time: each write replaces the same file.
    this.#saving = this.#saving.catch(() => {}).then(() => this.#save())
    return this.#saving
  }

  async #save(): Promise<void> {
    if (!this.map || this.#closed) return
    const text = journalText({ ...this.#subject, size: this.map.size, place: this.place }, this.map)
    if (text === this.#saved) return
    const path = journalPath(this.#target)
    // Flush first: an empty journal after a power failure would cost the whole partial file.
    await writeFile(`${path}.new`, text, { flush: true })
    await rename(`${path}.new`, path)
    this.#saved = text
  }

  /** Makes the system start writing, so that the flush at the end is short. @throws the disk's error */
  async flush(): Promise<void> {
    const completed = this.map?.completed ?? 0
    if (this.#closed || this.#flushing || Math.abs(completed - this.#flushed) < FLUSH_BYTES) return
    this.#flushed = completed
    this.#flushing = promisify(fdatasync)(this.descriptor).finally(() => {
      this.#flushing = undefined
    })
    await this.#flushing
  }

  async #release(): Promise<void> {
    await this.#saving.catch(() => {})
    try {
      await this.#flushing
    } finally {
      this.#closed = true
      closeSync(this.descriptor)
    }
  }

  async close(): Promise<void> {
    if (!this.#closed) await this.save().finally(() => this.#release())
  }

  async discard(): Promise<void> {
    if (!this.#closed) await this.#release()
    await removePartial(this.#target)
  }

  /** Flushes the file and renames it to its target. */
  async finish(): Promise<void> {
    const size = this.map!.size
    if (fstatSync(this.descriptor).size !== size) ftruncateSync(this.descriptor, size)
    await this.#release()
    await synced(this.path, 'file')
    await rename(this.path, this.#target)
    await synced(dirname(this.#target), 'folder')
    await removeJournal(this.#target)
  }

  /** Drops damaged partial chunks. Complete chunks are read for the digest anyway. */
  #dropDamaged(): void {
    const map = this.map!
    for (let chunk = 0; chunk < map.count; chunk++) {
      if (map.have[chunk] === 0 || map.isComplete(chunk)) continue
      if (crcOnDisk(this.descriptor, map.start(chunk), map.have[chunk]!) !== map.crc[chunk]) map.drop(chunk)
    }
  }
}

function crcOnDisk(descriptor: number, start: number, length: number): number | undefined {
  const buffer = Buffer.allocUnsafe(Math.min(READ_BYTES, length))
  let crc = 0
  for (let at = 0; at < length; ) {
    const bytes = readSync(descriptor, buffer, 0, Math.min(buffer.length, length - at), start + at)
    if (bytes === 0) return undefined
    crc = crc32(buffer.subarray(0, bytes), crc)
    at += bytes
  }
  return crc
}

// ---- writing -------------------------------------------------------------------------------------------------------

/** Bytes that are collected before they are written: few enough to stay in the processor's cache. */
export const WRITE_BYTES = 256 * 1024

interface PartWriterOptions {
  descriptor: number
  map: ChunkMap
  span: Span
  buffer: Buffer
  readSize: number
  onWritten(bytes: number): void
}

/** Writes a span's bytes to the file. Synchronous: mostly a copy to the page cache. */
export class PartWriter {
  readonly #options: PartWriterOptions
  /** Position of the buffer's first byte in the file. */
  #position: number
  #filled = 0
  #written = 0

  constructor(options: PartWriterOptions) {
    this.#options = options
    const { map, span } = options
    this.#position = map.start(span.at) + map.have[span.at]!
  }

  get position(): number {
    return this.#position + this.#filled
  }

  /** Returns the buffer for the next bytes: up to the end of a chunk or of an aligned block. */
  room(): Buffer {
    const { map, span, buffer, readSize } = this.#options
    const end = Math.min(map.end(span.at), this.#position + WRITE_BYTES - (this.#position % WRITE_BYTES))
    return buffer.subarray(this.#filled, this.#filled + Math.min(end - this.position, readSize))
  }

  /** Called when bytes were put into the room. @returns false if the span is complete */
  filled(length: number): boolean {
    const { map, span } = this.#options
    this.#filled += length
    const atEnd = this.position === map.end(span.at)
    if (atEnd || this.position % WRITE_BYTES === 0) {
      this.flush()
      this.#position += this.#filled
      this.#filled = 0
      this.#written = 0
    }
    if (atEnd) span.at += 1
    return span.at < span.to
  }

  /** Writes the collected bytes, without moving the buffer, because a read into it may be running. */
  flush(): void {
    const { descriptor, map, span, buffer, onWritten } = this.#options
    while (this.#written < this.#filled) {
      const left = this.#filled - this.#written
      const length = writeSync(descriptor, buffer, this.#written, left, this.#position + this.#written)
      const bytes = buffer.subarray(this.#written, this.#written + length)
      map.add(span.at, length, crc32(bytes, map.crc[span.at]!))
      this.#written += length
      onWritten(length)
    }
  }
}
