import { writeSync } from 'node:fs'
import { crc32 } from 'node:zlib'
import type { ChunkMap } from './chunk-map.ts'
import type { Span } from './span-plan.ts'

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
