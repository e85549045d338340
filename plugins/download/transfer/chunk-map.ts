/** Most chunks of a file, so that its journal stays small. */
const MOST_CHUNKS = 4096
const SMALLEST_CHUNK = 1024 * 1024

/** Bytes of a file's chunks: a power of two, so large that there are not too many. */
export function chunkSizeFor(size: number): number {
  let chunk = SMALLEST_CHUNK
  while (chunk * MOST_CHUNKS < size) chunk *= 2
  return chunk
}

/**
 * What of a file is on disk. A chunk is written from its start on, by one connection at a time, so that its state is a
 * length and the CRC-32 of that many bytes.
 */
export class ChunkMap {
  readonly size: number
  readonly chunkSize: number
  readonly count: number
  /** Bytes that each chunk has, from its start. */
  readonly have: Float64Array
  /** Their CRC-32. */
  readonly crc: Uint32Array
  /** Bytes of all chunks. */
  completed = 0
  /** Whether the checksums are known. */
  hasCrcs = true

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

  isWhole(chunk: number): boolean {
    return this.have[chunk]! === this.end(chunk) - this.start(chunk)
  }

  get whole(): boolean {
    return this.completed === this.size
  }

  /** Notes bytes that continue a chunk, and the CRC-32 that it has with them. */
  add(chunk: number, bytes: number, crc: number): void {
    this.have[chunk]! += bytes
    this.crc[chunk] = crc
    this.completed += bytes
  }

  /** Notes that all is there, by the bytes' number alone. */
  fill(): void {
    for (let chunk = 0; chunk < this.count; chunk++) this.have[chunk] = this.end(chunk) - this.start(chunk)
    this.completed = this.size
    this.hasCrcs = false
  }

  /** Forgets a chunk. */
  drop(chunk: number): void {
    this.completed -= this.have[chunk]!
    this.have[chunk] = 0
    this.crc[chunk] = 0
  }
}
