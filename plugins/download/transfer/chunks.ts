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

/** Chunks that one connection fetches with one request, from the first to before the last. */
export interface Span {
  /** The chunk that it is at. */
  at: number
  /** The chunk before which it ends; others may take chunks from its end. */
  to: number
}

/** Milliseconds that a request should last, so that its round trip costs little. */
const REQUEST_TIME = 8000
const SMALLEST_REQUEST = 8 * 1024 * 1024
const LARGEST_REQUEST = 256 * 1024 * 1024
/** Milliseconds of work that must be left for a second connection to be worth it. */
const WORTH_SHARING = 250
/** Bytes that must be left for it: what is on its way to the first one is lost. */
const LEAST_SHARED = 2 * 1024 * 1024

/**
 * Bytes of a connection's next request: half of its fair share of what nobody fetches yet, or as much as lasts some
 * seconds where that is not more than its fair share. So requests are few, and all connections end at about the same time.
 * @param speed bytes a second of one connection; undefined while unknown
 */
export function requestSize(unclaimed: number, connections: number, speed: number | undefined): number {
  const fair = unclaimed / connections
  const lasting = Math.min(fair, ((speed ?? 0) * REQUEST_TIME) / 1000)
  return Math.min(LARGEST_REQUEST, Math.max(SMALLEST_REQUEST, fair / 2, lasting))
}

function isFree(map: ChunkMap, taken: readonly Span[], chunk: number): boolean {
  return !map.isWhole(chunk) && !taken.some(span => chunk >= span.at && chunk < span.to)
}

/** Bytes that are neither there nor being fetched. */
export function unclaimedBytes(map: ChunkMap, taken: readonly Span[]): number {
  const claimed = taken.reduce((sum, span) => sum + spanBytes(map, span), 0)
  return map.size - map.completed - claimed
}

/** Bytes that a span still has to fetch. */
export function spanBytes(map: ChunkMap, span: Span): number {
  if (span.at >= span.to) return 0
  return map.end(span.to - 1) - map.start(span.at) - map.have[span.at]!
}

/** The first chunks that are missing and that nobody fetches, up to `bytes` but at least one chunk. */
export function freeSpan(map: ChunkMap, taken: readonly Span[], bytes: number): Span | undefined {
  for (let chunk = 0; chunk < map.count; chunk++) {
    const holder = taken.find(span => chunk >= span.at && chunk < span.to)
    if (holder) {
      chunk = holder.to - 1
      continue
    }
    if (map.isWhole(chunk)) continue
    let to = chunk + 1
    let length = map.end(chunk) - map.start(chunk) - map.have[chunk]!
    // A chunk of which something is there is only continued at the start of a request.
    while (to < map.count && length < bytes && map.have[to] === 0 && isFree(map, taken, to)) {
      length += map.end(to) - map.start(to)
      to += 1
    }
    return { at: chunk, to }
  }
  return undefined
}

/**
 * Takes the second half of the longest span away from it, for a connection that has nothing to do. Undefined when it is
 * not worth it.
 * @param speed bytes a second of one connection; undefined while unknown
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

/** Milliseconds over which requests are compared, how much slower one may be than the next, and what is never slow. */
const COMPARED = 10_000
const CRAWL = 20
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

  /** Bytes a second of one request; undefined while unknown. */
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

  /** A request that crawls while the others do not; to be called often, it looks every ten seconds. */
  crawling<Request extends Measured>(now: number, running: ReadonlySet<Request>): Request | undefined {
    if (now - this.#comparedAt < COMPARED) return undefined
    const since = now - this.#comparedAt
    this.#comparedAt = now
    const speeds = [...running]
      .filter(request => this.#before.has(request))
      .map(request => ({ request, speed: ((request.bytes - this.#before.get(request)!) * 1000) / since }))
      .sort((a, b) => a.speed - b.speed)
    this.#before = new Map([...running].map(request => [request, request.bytes]))
    const [slowest, next] = speeds
    if (!slowest || !next || slowest.speed >= FAST_ENOUGH || slowest.speed * CRAWL > next.speed) return undefined
    return slowest.request
  }
}
