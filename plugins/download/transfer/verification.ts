import { stat } from 'node:fs/promises'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import type { ChunkMap } from './chunks.ts'
import type { Digests, FileDigest } from './digests.ts'
import type { TransferFile, TransferredFile } from './transfers.ts'

/** Times that the disk may give back something else than was written to a file. */
const MOST_DAMAGES = 16

export interface Wrong {
  expected: string
  got: string
}

export interface VerificationEvents {
  onRight(sha256: string): void
  /** Chunks were dropped and have to be fetched again. */
  onMissing(): void
  /** The whole file has to be fetched again: parts of it cannot be, or cannot be told from each other. */
  onAllMissing(wrong: Wrong): void
  /** Every chunk was fetched again, and it still is wrong. */
  onWrong(wrong: Wrong): void
  onFailed(error: unknown): void
}

/** Finds out whether a file's bytes are the right ones while they come, and if not, which have to be fetched again. */
export class Verification {
  readonly expected: Expected
  readonly #digests: Digests
  readonly #events: VerificationEvents
  #path = ''
  #map: ChunkMap | undefined
  #partial = true
  #digest: FileDigest | undefined
  /** Chunks before it were given to the digest. */
  #frontier = 0
  #recheck: Recheck | undefined
  #wrong: Wrong | undefined
  #suspicion = new Uint8Array(0)
  #damages = 0

  constructor(expected: Expected, digests: Digests, events: VerificationEvents) {
    this.expected = expected
    this.#digests = digests
    this.#events = events
  }

  /** Whether anything but its size says what the file is to be. */
  get hasDigest(): boolean {
    return this.expected.sha256 !== undefined || this.expected.gitSha1 !== undefined
  }

  /** Starts with what is there of a file. */
  begin(path: string, map: ChunkMap): void {
    this.#path = path
    this.#map = map
    this.#recheck = undefined
    if (this.#suspicion.length !== map.count) this.#suspicion = new Uint8Array(map.count)
    this.#follow()
  }

  /** Looks at the chunks that have become whole. */
  advance(): void {
    const map = this.#map
    if (!map || !this.#digest) return
    const first = this.#frontier
    const crcs: number[] = []
    while (this.#frontier < map.count && map.isWhole(this.#frontier)) {
      crcs.push(map.hasCrcs ? map.crc[this.#frontier]! : -1)
      this.#frontier += 1
    }
    if (crcs.length > 0) this.#digest.chunks(first, crcs)
  }

  /** All chunks are there and nothing is being fetched. */
  complete(): void {
    if (!this.#recheck || this.#digest) return
    if (this.#recheck.differs) this.#follow()
    else this.#fetchAgain()
  }

  /** Whether parts of the file can be fetched again by themselves. */
  allowParts(allowed: boolean): void {
    this.#partial = allowed
  }

  /** Chunks near a failure are looked at first when the digest turns out to be wrong. */
  suspect(from: number, to: number): void {
    for (let chunk = from; chunk <= to && chunk < this.#suspicion.length; chunk++) {
      const weight = chunk >= to - 1 ? 2 : 1
      this.#suspicion[chunk] = Math.max(this.#suspicion[chunk]!, weight)
    }
  }

  end(): void {
    this.#digest?.close()
    this.#digest = undefined
  }

  #follow(): void {
    this.end()
    this.#frontier = 0
    const { size, chunkSize } = this.#map!
    this.#digest = this.#digests.follow(
      { path: this.#path, size, chunkSize, git: this.expected.gitSha1 !== undefined },
      {
        onDone: (sha256, gitSha1) => this.#judge(sha256, gitSha1),
        onBad: chunk => this.#damaged(chunk),
        onFailed: error => this.#events.onFailed(error)
      }
    )
    this.advance()
  }

  #damaged(chunk: number): void {
    this.#damages += 1
    // What an earlier process left may be damaged all over; what was just written may not.
    if (this.#damages > Math.max(MOST_DAMAGES, this.#map!.count)) {
      this.end()
      this.#events.onFailed(
        new CorralError('internal', `The disk does not give back what was written to ${this.#path}. Check the disk.`)
      )
      return
    }
    this.#map!.drop(chunk)
    this.#frontier = chunk
    this.#events.onMissing()
  }

  #judge(sha256: string, gitSha1: string | undefined): void {
    this.#digest = undefined
    const wrong = mismatch(this.expected, sha256, gitSha1)
    if (!wrong) {
      this.#events.onRight(sha256)
      return
    }
    this.#wrong = wrong
    if (!this.#partial || !this.#map!.hasCrcs) {
      this.#events.onAllMissing(wrong)
      return
    }
    this.#recheck ??= new Recheck(this.#map!, this.#suspicion)
    this.#fetchAgain()
  }

  #fetchAgain(): void {
    if (this.#recheck!.next()) this.#events.onMissing()
    else this.#events.onWrong(this.#wrong!)
  }
}

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

const CHUNK = 8 * 1024 * 1024

/** What a file's bytes are to be; what the hub does not say is undefined. */
export interface Expected {
  sha256: string | undefined
  gitSha1: string | undefined
}

/** Why the digests are not those that are expected; undefined when they are. */
export function mismatch(
  expected: Expected,
  sha256: string,
  gitSha1: string | undefined
): { expected: string; got: string } | undefined {
  if (expected.sha256 !== undefined && expected.sha256.toLowerCase() !== sha256) {
    return { expected: `SHA-256 ${expected.sha256}`, got: sha256 }
  }
  if (expected.gitSha1 !== undefined && expected.gitSha1.toLowerCase() !== gitSha1) {
    return { expected: `git SHA-1 ${expected.gitSha1}`, got: gitSha1 ?? 'none' }
  }
  return undefined
}

/** Verifies a target that is there already; undefined when there is none, or not the right one. */
export async function checkTarget(
  file: TransferFile,
  digests: Digests,
  signal: AbortSignal
): Promise<TransferredFile | undefined> {
  let size: number
  try {
    const found = await stat(file.target)
    if (!found.isFile()) return undefined
    size = found.size
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    throw error
  }
  if (file.size !== undefined && file.size !== size) return undefined
  if (file.size === undefined && file.sha256 === undefined && file.gitSha1 === undefined) return undefined
  const { sha256, gitSha1 } = await digestOf(file, size, digests, signal)
  const wrong = mismatch({ sha256: file.sha256, gitSha1: file.gitSha1 }, sha256, gitSha1)
  return wrong === undefined ? { size, sha256 } : undefined
}

function digestOf(
  file: TransferFile,
  size: number,
  digests: Digests,
  signal: AbortSignal
): Promise<{ sha256: string; gitSha1: string | undefined }> {
  return new Promise((resolve, reject) => {
    const git = file.gitSha1 !== undefined
    const abort = () => {
      digest.close()
      reject(signal.reason)
    }
    const end = <Value>(settle: (value: Value) => void) => {
      return (value: Value) => {
        signal.removeEventListener('abort', abort)
        settle(value)
      }
    }
    const digest = digests.follow(
      { path: file.target, size, chunkSize: CHUNK, git },
      {
        onDone: (sha256, gitSha1) => end(resolve)({ sha256, gitSha1 }),
        onBad: () => end(reject)(new Error(`${file.target} became shorter while it was read`)),
        onFailed: end(reject)
      }
    )
    signal.addEventListener('abort', abort, { once: true })
    if (signal.aborted) return abort()
    digest.chunks(0, new Array(Math.ceil(size / CHUNK)).fill(-1))
  })
}
