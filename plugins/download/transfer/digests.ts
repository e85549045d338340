import { Worker } from 'node:worker_threads'
import type { DigestReply, DigestRequest } from './digest-worker.ts'

export interface DigestListener {
  /** 64 and 40 hex digits. */
  onDone(sha256: string, gitSha1: string | undefined): void
  /** The chunk reads back differently from what was written. */
  onDamaged(chunk: number): void
  onFailed(error: Error): void
}

/** The digest of one file, computed while its chunks arrive. */
export interface FileDigest {
  /** Chunks from `first` on are on disk; -1 stands for an unknown CRC-32. */
  chunks(first: number, crcs: number[]): void
  close(): void
}

/** Computes digests of files in a worker thread: they cost as much processor time as the transfer. */
export class Digests {
  #worker: Worker | undefined
  #next = 0
  readonly #listeners = new Map<number, DigestListener>()

  /** Starts the worker ahead of its first use, since that takes a moment. */
  prepare(): void {
    this.#worker ??= this.#start()
  }

  follow(file: { path: string; size: number; chunkSize: number; git: boolean }, listener: DigestListener): FileDigest {
    const id = this.#next++
    this.#listeners.set(id, listener)
    this.#send({ type: 'open', id, ...file })
    return {
      chunks: (first, crcs) => this.#send({ type: 'chunks', id, first, crcs }),
      close: () => {
        if (this.#listeners.delete(id)) this.#send({ type: 'close', id })
      }
    }
  }

  /** Resolves when no file is open any more. */
  async close(): Promise<void> {
    this.#listeners.clear()
    await this.#worker?.terminate()
    this.#worker = undefined
  }

  #send(request: DigestRequest): void {
    this.prepare()
    this.#worker!.postMessage(request)
  }

  #start(): Worker {
    const worker = new Worker(new URL('./digest-worker.js', import.meta.url), {
      resourceLimits: { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 64 }
    })
    worker.on('message', (reply: DigestReply) => this.#onReply(reply))
    worker.on('error', error => this.#onEnd(worker, error))
    worker.on('exit', () => this.#onEnd(worker, new Error('the worker thread of the digests ended')))
    return worker
  }

  #onReply(reply: DigestReply): void {
    const listener = this.#listeners.get(reply.id)
    if (!listener) return
    if (reply.type === 'damaged') {
      listener.onDamaged(reply.chunk)
      return
    }
    this.#listeners.delete(reply.id)
    if (reply.type === 'done') listener.onDone(reply.sha256, reply.gitSha1)
    else listener.onFailed(Object.assign(new Error(reply.message), { code: reply.code }))
  }

  #onEnd(worker: Worker, error: Error): void {
    if (this.#worker !== worker) return
    this.#worker = undefined
    const listeners = [...this.#listeners.values()]
    this.#listeners.clear()
    for (const listener of listeners) listener.onFailed(error)
  }
}
