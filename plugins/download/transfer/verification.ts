import { stat } from 'node:fs/promises'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import type { ChunkMap } from './chunks.ts'
import type { Digests, FileDigest } from './digests.ts'
import type { TransferFile, TransferredFile } from './transfers.ts'

/** Chunks of a file that may read back differently from what was written. */
const MAX_DAMAGED = 16

export interface Mismatch {
  expected: string
  got: string
}

export interface VerificationEvents {
  onVerified(sha256: string): void
  /** Chunks were dropped and must be fetched again. */
  onMissing(): void
  /** The digest is wrong and parts cannot be fetched by themselves: the whole file must be fetched again. */
  onRestart(mismatch: Mismatch): void
  /** The digest is still wrong after every chunk was fetched again. */
  onMismatch(mismatch: Mismatch): void
  onFailed(error: unknown): void
}

/** Verifies a file while its bytes arrive, and finds the chunks to fetch again when the digest is wrong. */
export class Verification {
  readonly expected: Expected
  readonly #digests: Digests
  readonly #events: VerificationEvents
  #path = ''
  #map: ChunkMap | undefined
  #partial = true
  #digest: FileDigest | undefined
  /** The first chunk that the digest has not got yet. */
  #frontier = 0
  #recheck: Recheck | undefined
  #mismatch: Mismatch | undefined
  #suspicion = new Uint8Array(0)
  #damages = 0

  constructor(expected: Expected, digests: Digests, events: VerificationEvents) {
    this.expected = expected
    this.#digests = digests
    this.#events = events
  }

  /** Whether anything but the size is known to verify the file by. */
  get hasDigest(): boolean {
    return this.expected.sha256 !== undefined || this.expected.gitSha1 !== undefined
  }

  /** Starts with the chunks that are on disk already. */
  begin(path: string, map: ChunkMap): void {
    this.#path = path
    this.#map = map
    this.#recheck = undefined
    if (this.#suspicion.length !== map.count) this.#suspicion = new Uint8Array(map.count)
    this.#follow()
  }

  /** Passes chunks that have become complete to the digest. */
  advance(): void {
    const map = this.#map
    if (!map || !this.#digest) return
    const first = this.#frontier
    const crcs: number[] = []
    while (this.#frontier < map.count && map.isComplete(this.#frontier)) {
      crcs.push(map.hasCrcs ? map.crc[this.#frontier]! : -1)
      this.#frontier += 1
    }
    if (crcs.length > 0) this.#digest.chunks(first, crcs)
  }

  /** All chunks are on disk and no request is running. */
  complete(): void {
    if (!this.#recheck || this.#digest) return
    if (this.#recheck.differs) this.#follow()
    else this.#fetchAgain()
  }

  /** Whether the server supports ranges, so that single chunks can be fetched again. */
  allowParts(allowed: boolean): void {
    this.#partial = allowed
  }

  /** Chunks near a failure are fetched again first when the digest turns out to be wrong. */
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
        onDone: (sha256, gitSha1) => this.#onDigest(sha256, gitSha1),
        onDamaged: chunk => this.#damaged(chunk),
        onFailed: error => this.#events.onFailed(error)
      }
    )
    this.advance()
  }

  #damaged(chunk: number): void {
    this.#damages += 1
    // Every chunk of an earlier process may be damaged once; what this one has just written may not.
    if (this.#damages > Math.max(MAX_DAMAGED, this.#map!.count)) {
      this.end()
      this.#events.onFailed(
        new CorralError('internal', `What was written to ${this.#path} reads back differently. Check the disk.`)
      )
      return
    }
    this.#map!.drop(chunk)
    this.#frontier = chunk
    this.#events.onMissing()
  }

  #onDigest(sha256: string, gitSha1: string | undefined): void {
    this.#digest = undefined
    const mismatch = mismatchOf(this.expected, sha256, gitSha1)
    if (!mismatch) {
      this.#events.onVerified(sha256)
      return
    }
    this.#mismatch = mismatch
    if (!this.#partial || !this.#map!.hasCrcs) {
      this.#events.onRestart(mismatch)
      return
    }
    this.#recheck ??= new Recheck(this.#map!, this.#suspicion)
    this.#fetchAgain()
  }

  #fetchAgain(): void {
    if (this.#recheck!.next()) this.#events.onMissing()
    else this.#events.onMismatch(this.#mismatch!)
  }
}

/** Bytes that are fetched again before the digest is computed again. */
const GROUP = 8 * 1024 * 1024

/**
 * Finds bytes that were corrupted in transit: fetches chunks again, suspicious ones first, and compares their checksums
 * with the earlier ones.
 */
export class Recheck {
  readonly #map: ChunkMap
  readonly #suspicion: Uint8Array
  readonly #queue: number[]
  readonly #before = new Map<number, number>()

  /** @param suspicion of each chunk; the highest are fetched first */
  constructor(map: ChunkMap, suspicion: Uint8Array) {
    this.#map = map
    this.#suspicion = suspicion
    this.#queue = Array.from({ length: map.count }, (_, chunk) => chunk)
    this.#queue.sort((a, b) => suspicion[b]! - suspicion[a]! || a - b)
  }

  /** Drops the next chunks, so that they are fetched again. @returns false when all have been */
  next(): boolean {
    this.#before.clear()
    let bytes = 0
    const level = this.#suspicion[this.#queue[0] ?? 0]
    // One level of suspicion at a time: the worst may be all that is wrong.
    while (bytes < GROUP && this.#queue.length > 0 && this.#suspicion[this.#queue[0]!] === level) {
      const chunk = this.#queue.shift()!
      bytes += this.#map.have[chunk]!
      this.#before.set(chunk, this.#map.crc[chunk]!)
      this.#map.drop(chunk)
    }
    return this.#before.size > 0
  }

  /** Whether what was fetched again differs from what was there. */
  get differs(): boolean {
    return [...this.#before].some(([chunk, crc]) => this.#map.crc[chunk] !== crc)
  }
}

const CHUNK = 8 * 1024 * 1024

/** The digests that a file must have, as far as the hub reports them. */
export interface Expected {
  sha256: string | undefined
  gitSha1: string | undefined
}

/** How digests differ from the expected ones; undefined when they match. */
export function mismatchOf(
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

/** Verifies a target that exists already; undefined when there is none, or its content is wrong. */
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
  const mismatch = mismatchOf({ sha256: file.sha256, gitSha1: file.gitSha1 }, sha256, gitSha1)
  return mismatch === undefined ? { size, sha256 } : undefined
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
        onDamaged: () => end(reject)(new Error(`${file.target} became shorter while it was read`)),
        onFailed: end(reject)
      }
    )
    signal.addEventListener('abort', abort, { once: true })
    if (signal.aborted) return abort()
    digest.chunks(0, new Array(Math.ceil(size / CHUNK)).fill(-1))
  })
}
