import { CorralError } from '../../../core/errors.ts'
import type { ChunkMap } from './chunk-map.ts'
import type { Digests, FileDigest } from './digest/digests.ts'
import { type Expected, mismatch } from './file-check.ts'
import { Recheck } from './recheck.ts'

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
