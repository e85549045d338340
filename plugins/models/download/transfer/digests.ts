import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { stat } from 'node:fs/promises'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import { whenMissing } from '../../../../core/errors.ts'
import type { TransferFile, TransferredFile } from './transfers.ts'

/** A file whose digest is computed while it is written. The messages below use its own port. */
export interface DigestJob {
  path: string
  size: number
  chunkSize: number
  git: boolean
  port: MessagePort
}

/** Chunks on disk from `first` on. Chunks with a CRC-32 must be checked. */
export interface WrittenChunks {
  first: number
  crcs: (number | undefined)[]
}

export type DigestReply =
  | { type: 'done'; sha256: string; gitSha1: string | undefined }
  /** The chunk on disk does not match its CRC-32. Send chunks again from this one on. */
  | { type: 'damaged'; chunk: number }
  | { type: 'failed'; message: string; code: string | undefined }

/** Creates the hashes of a file, to be updated with its bytes: SHA-256, and git's SHA-1 if needed. */
export const fileHashes = (size: number, git: boolean) => [
  createHash('sha256'),
  ...(git ? [createHash('sha1').update(`blob ${size}\0`)] : [])
]

export async function hashFile(path: string, size: number, git: boolean, signal?: AbortSignal) {
  const hashes = fileHashes(size, git)
  for await (const bytes of createReadStream(path, { signal, highWaterMark: 256 * 1024 })) {
    for (const hash of hashes) hash.update(bytes)
  }
  const [sha256, gitSha1] = hashes.map(hash => hash.digest('hex'))
  return { sha256: sha256!, gitSha1 }
}

export interface Mismatch {
  expected: string
  got: string
}

export function compareDigests(
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

export type FileDigest = ReturnType<Digests['follow']>

/** Computes digests of files in a worker thread, since they take as much processor time as the transfer. */
export class Digests {
  #worker: Worker | undefined
  #failure: Error | undefined

  /** Starts the worker before its first use, since that takes a moment. */
  prepare(): Worker {
    if (this.#worker) return this.#worker
    const worker = new Worker(new URL('./digest-worker.js', import.meta.url), {
      resourceLimits: { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 64 }
    })
    worker.on('error', error => {
      this.#failure = error
    })
    worker.on('exit', () => {
      if (this.#worker === worker) this.#worker = undefined
    })
    this.#worker = worker
    return worker
  }

  /** @param onReply gets `damaged` any number of times, then `done` or `failed` */
  follow(file: Omit<DigestJob, 'port'>, onReply: (reply: DigestReply) => void) {
    const { port1: port, port2 } = new MessageChannel()
    let open = true
    const close = () => {
      open = false
      port.close()
    }
    port.on('message', (reply: DigestReply) => {
      if (!open) return
      if (reply.type !== 'damaged') close()
      onReply(reply)
    })
    port.on('close', () => {
      if (!open) return
      open = false
      const why = this.#failure?.message ?? 'the digest worker thread ended'
      onReply({ type: 'failed', message: why, code: undefined })
    })
    this.prepare().postMessage({ ...file, port: port2 } satisfies DigestJob, [port2])
    return { written: (chunks: WrittenChunks) => port.postMessage(chunks), close }
  }

  async close(): Promise<void> {
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }
}
