import type { ChunkMap } from './chunk-map.ts'

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
