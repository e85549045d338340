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
