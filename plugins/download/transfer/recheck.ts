import type { ChunkMap } from './chunk-map.ts'

/** Bytes that are fetched again before the digest is looked at. */
const GROUP = 8 * 1024 * 1024

/**
 * Finds wrong bytes that came over the wire: fetches chunks anew, those that came under suspicious circumstances first,
 * and compares their checksums with what was there.
 */
export class Recheck {
  readonly #map: ChunkMap
  readonly #suspicion: Uint8Array
  readonly #queue: number[]
  readonly #before = new Map<number, number>()

  /** @param suspicion of each chunk; the higher the sooner */
  constructor(map: ChunkMap, suspicion: Uint8Array) {
    this.#map = map
    this.#suspicion = suspicion
    this.#queue = Array.from({ length: map.count }, (_, chunk) => chunk)
    this.#queue.sort((a, b) => suspicion[b]! - suspicion[a]! || a - b)
  }

  /** Drops the next chunks, so that they are fetched; false when all have been. */
  next(): boolean {
    this.#before.clear()
    let bytes = 0
    const level = this.#suspicion[this.#queue[0] ?? 0]
    // What is suspicious comes by itself: it may be all there is to it.
    while (bytes < GROUP && this.#queue.length > 0 && this.#suspicion[this.#queue[0]!] === level) {
      const chunk = this.#queue.shift()!
      bytes += this.#map.have[chunk]!
      this.#before.set(chunk, this.#map.crc[chunk]!)
      this.#map.drop(chunk)
    }
    return this.#before.size > 0
  }

  /** Whether what was fetched anew differs from what was there. */
  get differs(): boolean {
    return [...this.#before].some(([chunk, crc]) => this.#map.crc[chunk] !== crc)
  }
}
