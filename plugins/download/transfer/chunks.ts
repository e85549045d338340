/** Most chunks of a file, so that its journal stays small. */
const MAX_CHUNKS = 4096
const SMALLEST_CHUNK = 1024 * 1024

/** The size of a file's chunks: a power of two, large enough to keep their number limited. */
export function chunkSizeFor(size: number): number {
  let chunk = SMALLEST_CHUNK
  while (chunk * MAX_CHUNKS < size) chunk *= 2
  return chunk
}

/**
 * Which bytes of a file are on disk. A chunk is written from its start, by one connection at a time, so that its state is
 * a length and the CRC-32 of that many bytes.
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
  /** False when the chunks were fetched as one stream, without checksums. */
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

  isComplete(chunk: number): boolean {
    return this.have[chunk]! === this.end(chunk) - this.start(chunk)
  }

  get complete(): boolean {
    return this.completed === this.size
  }

  /** Adds bytes to a chunk, with the CRC-32 that it has then. */
  add(chunk: number, bytes: number, crc: number): void {
    this.have[chunk]! += bytes
    this.crc[chunk] = crc
    this.completed += bytes
  }

  /** Marks everything as present, without checksums. */
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

/** Chunks that one connection fetches with one request, from the first to before the last. */
export interface Span {
  /** The chunk that is being fetched. */
  at: number
  /** The chunk before which the span ends; others may take chunks from its end. */
  to: number
}

/** Milliseconds that a request should last, so that its round trip costs little. */
const REQUEST_TIME = 8000
const SMALLEST_REQUEST = 8 * 1024 * 1024
const LARGEST_REQUEST = 256 * 1024 * 1024
/** Milliseconds of work that must be left to make a second connection worthwhile. */
const WORTH_SHARING = 250
/** Bytes that must be left for it, since what is on its way to the first connection is lost. */
const LEAST_SHARED = 2 * 1024 * 1024

/**
 * Bytes of a connection's next request: half of its fair share of the unclaimed bytes, or some seconds' worth where that
 * is not more than the fair share. Requests are few then, and all connections end at about the same time.
 * @param speed bytes per second of one connection; undefined while unknown
 */
export function requestSize(unclaimed: number, connections: number, speed: number | undefined): number {
  const fair = unclaimed / connections
  const lasting = Math.min(fair, ((speed ?? 0) * REQUEST_TIME) / 1000)
  return Math.min(LARGEST_REQUEST, Math.max(SMALLEST_REQUEST, fair / 2, lasting))
}

function isFree(map: ChunkMap, taken: readonly Span[], chunk: number): boolean {
  return !map.isComplete(chunk) && !taken.some(span => chunk >= span.at && chunk < span.to)
}

/** Bytes that are neither on disk nor being fetched. */
export function unclaimedBytes(map: ChunkMap, taken: readonly Span[]): number {
  const claimed = taken.reduce((sum, span) => sum + spanBytes(map, span), 0)
  return map.size - map.completed - claimed
}

/** Bytes that a span still has to fetch. */
export function spanBytes(map: ChunkMap, span: Span): number {
  if (span.at >= span.to) return 0
  return map.end(span.to - 1) - map.start(span.at) - map.have[span.at]!
}

/** The first missing chunks that no request fetches, up to `bytes` but at least one chunk. */
export function freeSpan(map: ChunkMap, taken: readonly Span[], bytes: number): Span | undefined {
  for (let chunk = 0; chunk < map.count; chunk++) {
    const owner = taken.find(span => chunk >= span.at && chunk < span.to)
    if (owner) {
      chunk = owner.to - 1
      continue
    }
    if (map.isComplete(chunk)) continue
    let to = chunk + 1
    let length = map.end(chunk) - map.start(chunk) - map.have[chunk]!
    // A chunk that is partly on disk can only be continued at the start of a request.
    while (to < map.count && length < bytes && map.have[to] === 0 && isFree(map, taken, to)) {
      length += map.end(to) - map.start(to)
      to += 1
    }
    return { at: chunk, to }
  }
  return undefined
}

/**
 * Takes away the second half of the longest span, for a connection that has nothing to do. Undefined when that is not
 * worthwhile.
 * @param speed bytes per second of one connection; undefined while unknown
 */
export function stolenSpan(map: ChunkMap, taken: readonly Span[], speed: number | undefined): Span | undefined {
  let longest: Span | undefined
  for (const span of taken) if (!longest || spanBytes(map, span) > spanBytes(map, longest)) longest = span
  if (!longest || longest.to - longest.at < 2) return undefined
  if (spanBytes(map, longest) < Math.max(LEAST_SHARED, ((speed ?? 0) * WORTH_SHARING) / 1000)) return undefined
  const to = longest.to
  const at = longest.at + Math.ceil((to - longest.at) / 2)
  longest.to = at
  return { at, to }
}

/** Requests are compared every so many milliseconds; one is replaced when it is this much slower than the next slowest. */
const COMPARE_INTERVAL = 10_000
const CRAWL_FACTOR = 20
/** Bytes per second that are never too slow. */
const FAST_ENOUGH = 64 * 1024

interface Measured {
  readonly startedAt: number
  readonly bytes: number
}

/** How fast the requests for a file are. */
export class Speeds {
  #each: number | undefined
  #at = 0
  #arrived = 0
  #comparedAt = 0
  #before = new Map<Measured, number>()

  /** Bytes per second of one request; undefined while unknown. */
  each(now: number, running: ReadonlySet<Measured>): number | undefined {
    if (this.#each !== undefined || running.size === 0) return this.#each
    return Math.max(...[...running].map(({ bytes, startedAt }) => (bytes * 1000) / Math.max(1, now - startedAt)))
  }

  /** @param arrived bytes of all requests so far */
  tick(now: number, arrived: number, running: ReadonlySet<Measured>): void {
    const seconds = (now - this.#at) / 1000
    if (seconds < 0.5 || running.size === 0) return
    const each = (arrived - this.#arrived) / seconds / running.size
    if (this.#at > 0) this.#each = this.#each === undefined ? each : (this.#each + each) / 2
    this.#at = now
    this.#arrived = arrived
  }

  /** A request that crawls while the others do not. Called often, it compares them every ten seconds. */
  crawling<Request extends Measured>(now: number, running: ReadonlySet<Request>): Request | undefined {
    if (now - this.#comparedAt < COMPARE_INTERVAL) return undefined
    const since = now - this.#comparedAt
    this.#comparedAt = now
    const speeds = [...running]
      .filter(request => this.#before.has(request))
      .map(request => ({ request, speed: ((request.bytes - this.#before.get(request)!) * 1000) / since }))
      .sort((a, b) => a.speed - b.speed)
    this.#before = new Map([...running].map(request => [request, request.bytes]))
    const [slowest, next] = speeds
    if (!slowest || !next || slowest.speed >= FAST_ENOUGH || slowest.speed * CRAWL_FACTOR > next.speed) return undefined
    return slowest.request
  }
}
