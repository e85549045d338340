import { createHash } from 'node:crypto'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'

/** A file whose digest is to be computed while it is written; it has a port of its own for the messages below. */
export interface DigestJob {
  path: string
  size: number
  chunkSize: number
  /** Whether git's SHA-1 is needed too. */
  git: boolean
  port: MessagePort
}

/** Chunks that are on disk, from `first` on: the CRC-32 of each that must be checked. */
export interface WrittenChunks {
  first: number
  crcs: (number | undefined)[]
}

export type DigestReply =
  | { type: 'done'; sha256: string; gitSha1: string | undefined }
  /** The chunk on disk does not match its CRC-32. Chunks are expected again from this one on. */
  | { type: 'damaged'; chunk: number }
  | { type: 'failed'; message: string; code: string | undefined }

/** The digests of a file, to be updated with its bytes: SHA-256, and git's SHA-1 if needed. */
export function fileHashes(size: number, git: boolean) {
  return [createHash('sha256'), ...(git ? [createHash('sha1').update(`blob ${size}\0`)] : [])]
}

/** The digest of one file, computed while its chunks arrive. */
export type FileDigest = ReturnType<Digests['follow']>

/** Computes digests of files in a worker thread: they cost as much processor time as the transfer. */
export class Digests {
  #worker: Worker | undefined
  #failure: Error | undefined

  /** Starts the worker ahead of its first use, since that takes a moment. */
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

  /** @param onReply gets `damaged` any number of times, and `done` or `failed` as the last */
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
      const why = this.#failure?.message ?? 'the worker thread of the digests ended'
      onReply({ type: 'failed', message: why, code: undefined })
    })
    this.prepare().postMessage({ ...file, port: port2 } satisfies DigestJob, [port2])
    return { written: (chunks: WrittenChunks) => port.postMessage(chunks), close }
  }

  /** Resolves when no file is open any more. */
  async close(): Promise<void> {
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }
}
