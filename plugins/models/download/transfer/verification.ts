import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { CorralError, whenMissing } from '../../../../core/errors.ts'
import type { ChunkMap } from './chunk-map.ts'
import { type DigestReply, type Digests, type FileDigest, hashFile, type WrittenChunks } from './digests.ts'
import type { TransferFile, TransferredFile } from './transfers.ts'

/** Maximum chunks of a file that may differ when they are read back. */
const MAX_DAMAGED_CHUNKS = 16
/** Bytes that are downloaded again before the digest is computed again. */
const REFETCH_BYTES = 8 * 1024 * 1024

export interface Mismatch {
  expected: string
  got: string
}

interface VerificationEvents {
  onVerified(sha256: string): void
  onMissing(): void
  /** The digest is wrong. One of the events below follows. */
  onWrong(): void
  /** The digest is wrong and chunks cannot be downloaded individually: the whole file must be downloaded again. */
  onRestart(mismatch: Mismatch): void
  /** The digest is still wrong after every chunk was downloaded again. */
  onMismatch(mismatch: Mismatch): void
  onFailed(error: unknown): void
}

/**
 * Verifies a file while its bytes arrive. Chunks from an earlier process are compared with the journal. New chunks are
 * compared only if the digest is wrong or the hub reports none. If the digest is wrong although all chunks are as they
 * arrived, chunks are downloaded again, a few at a time in order. The digest is recomputed as soon as one of them
 * differs from before.
 */
export class Verification {
  readonly expected: Pick<TransferFile, 'sha256' | 'gitSha1'>
  /** Whether the server supports ranges, so that single chunks can be downloaded again. */
  partial = true
  readonly #digests: Digests
  readonly #events: VerificationEvents
  #path = ''
  #map: ChunkMap | undefined
  #digest: FileDigest | undefined
  /** Chunks from an earlier process, and whether new chunks are compared too. */
  #found = new Set<number>()
  #careful = false
  #frontier = 0
  /** The next chunk to download again, and the old checksums of the chunks that are being downloaded again. */
  #again = 0
  readonly #before = new Map<number, number>()
  #mismatch: Mismatch | undefined
  #damages = 0

  constructor({ sha256, gitSha1 }: TransferFile, digests: Digests, events: VerificationEvents) {
    this.expected = { sha256, gitSha1 }
    this.#digests = digests
    this.#events = events
  }

  get hasDigest(): boolean {
    return this.expected.sha256 !== undefined || this.expected.gitSha1 !== undefined
  }

  /** Starts with the chunks that are already on disk. */
  begin(path: string, map: ChunkMap): void {
    this.#path = path
    this.#map = map
    this.#again = 0
    this.#before.clear()
    this.#careful = false
    this.#found = new Set([...map.have.keys()].filter(chunk => map.isComplete(chunk)))
    this.#follow()
  }

  advance(): void {
    const map = this.#map
    if (!map || !this.#digest) return
    const first = this.#frontier
    const crcs: WrittenChunks['crcs'] = []
    for (; this.#frontier < map.count && map.isComplete(this.#frontier); this.#frontier++) {
      const checked = this.#careful || !this.hasDigest || this.#found.has(this.#frontier)
      crcs.push(checked ? map.crc[this.#frontier] : undefined)
    }
    if (crcs.length > 0) this.#digest.written({ first, crcs })
  }

  /** Called when all chunks are on disk and no request is running. */
  complete(): void {
    if (this.#digest || this.#before.size === 0) return
    const differs = [...this.#before].some(([chunk, crc]) => this.#map!.crc[chunk] !== crc)
    if (differs) this.#follow()
    else this.#fetchAgain()
  }

  end(): void {
    this.#digest?.close()
    this.#digest = undefined
  }

  #follow(): void {
    this.end()
    this.#frontier = 0
    const { size, chunkSize } = this.#map!
    const file = { path: this.#path, size, chunkSize, git: this.expected.gitSha1 !== undefined }
    this.#digest = this.#digests.follow(file, reply => this.#onReply(reply))
    this.advance()
  }

  #onReply(reply: DigestReply): void {
    if (reply.type === 'damaged') this.#onDamaged(reply.chunk)
    else if (reply.type === 'failed')
      this.#events.onFailed(Object.assign(new Error(reply.message), { code: reply.code }))
    else this.#onDigest(reply.sha256, reply.gitSha1)
  }

  #onDamaged(chunk: number): void {
    this.#damages += 1
    // Every chunk from an earlier process may be damaged once, but new chunks must not be.
    if (this.#damages > Math.max(MAX_DAMAGED_CHUNKS, this.#map!.count)) {
      this.end()
      this.#events.onFailed(
        new CorralError('internal', `Data written to ${basename(this.#path)} reads back differently. Check the disk.`)
      )
      return
    }
    this.#map!.drop(chunk)
    this.#frontier = chunk
    this.#events.onMissing()
  }

  #onDigest(sha256: string, gitSha1: string | undefined): void {
    this.#digest = undefined
    this.#mismatch = compareDigests(this.expected, sha256, gitSha1)
    if (!this.#mismatch) {
      this.#events.onVerified(sha256)
      return
    }
    if (!this.partial) {
      this.#events.onWrong()
      this.#events.onRestart(this.#mismatch)
    } else if (!this.#careful) {
      this.#careful = true
      this.#follow()
    } else {
      this.#events.onWrong()
      this.#fetchAgain()
    }
  }

  /** Drops the next chunks, so that they are downloaded again. */
  #fetchAgain(): void {
    const map = this.#map!
    this.#before.clear()
    for (let bytes = 0; bytes < REFETCH_BYTES && this.#again < map.count; this.#again++) {
      bytes += map.have[this.#again]!
      this.#before.set(this.#again, map.crc[this.#again]!)
      map.drop(this.#again)
    }
    if (this.#before.size > 0) this.#events.onMissing()
    else this.#events.onMismatch(this.#mismatch!)
  }
}

function compareDigests(
  expected: Pick<TransferFile, 'sha256' | 'gitSha1'>,
  sha256: string,
  gitSha1: string | undefined
): Mismatch | undefined {
  if (expected.sha256 !== undefined && expected.sha256.toLowerCase() !== sha256) {
    return { expected: `SHA-256 ${expected.sha256}`, got: sha256 }
  }
  if (expected.gitSha1 !== undefined && expected.gitSha1.toLowerCase() !== gitSha1) {
    return { expected: `git SHA-1 ${expected.gitSha1}`, got: gitSha1 ?? 'none' }
  }
  return undefined
}

/** Verifies an existing target. Returns undefined if there is none, or its content is wrong. */
export async function checkTarget(file: TransferFile, signal: AbortSignal): Promise<TransferredFile | undefined> {
  const found = await stat(file.target).catch(whenMissing)
  const isKnown = (file.size ?? file.sha256 ?? file.gitSha1) !== undefined
  if (!found?.isFile() || !isKnown || (file.size ?? found.size) !== found.size) return undefined
  const { sha256, gitSha1 } = await hashFile(file.target, found.size, file.gitSha1 !== undefined, signal)
  return compareDigests(file, sha256, gitSha1) ? undefined : { size: found.size, sha256 }
}
