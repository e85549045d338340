import { Worker } from 'node:worker_threads'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { FIRST_DELAY } from './retries.ts'

/** One file to be fetched. */
export interface TransferFile {
  /** In the repository; for messages. */
  path: string
  /** Absolute path of the complete, verified file. Partial data and their journal lie beside it. */
  target: string
  /** Bytes; undefined where only the server knows. */
  size: number | undefined
  /** What the file is verified by; without both, by its size. */
  sha256?: string
  gitSha1?: string
}

export interface TransferRequest {
  /** Identifies the content of all files (hub, repository, revision): partial data of another one are discarded. */
  identity: string
  files: readonly TransferFile[]
  /** Where the bytes of a file are now; called again when a location stops working. Its CorralErrors end the transfer. */
  locate(index: number, signal: AbortSignal): Promise<FileLocation>
  signal: AbortSignal
  /** Bytes of one file that are on disk: at most ten times per second and file, and at its end. */
  onProgress(index: number, completed: number, total: number): void
}

/** A verified file. */
export interface TransferredFile {
  /** Bytes. */
  size: number
  /** 64 hex digits, computed from the bytes. */
  sha256: string
}

export interface Transfers {
  /**
   * Fetches and verifies files, and returns them in order. Files that exist already are verified and kept. After a
   * failure or an abort partial data stay, and the next run continues them.
   * @throws CorralError `hub_unreachable`, `hub_forbidden`, `hub_rate_limited`, `checksum_mismatch`,
   * `insufficient_storage`; the signal's reason
   */
  run(request: TransferRequest): Promise<TransferredFile[]>
  /** Ends all runs; resolves when nothing is written any more. */
  close(): Promise<void>
}

export interface TransferOptions {
  /** Most connections for one file, and for all files together. */
  connectionsPerFile: number
  connections: number
  /** Bytes per second of all transfers together; 0 means no limit. */
  bandwidthLimit: number
  /** Milliseconds without a byte after which a connection is replaced. */
  stallTimeout: number
}

/** Messages to the worker thread. */
export type ToWorker =
  | { type: 'run'; id: number; identity: string; files: readonly TransferFile[] }
  | { type: 'located'; request: number; location: FileLocation | undefined }
  | { type: 'abort'; id: number }

/** Messages from the worker thread. */
export type FromWorker =
  | { type: 'locate'; id: number; request: number; index: number }
  | { type: 'progress'; id: number; index: number; completed: number; total: number }
  | { type: 'done'; id: number; files: TransferredFile[] }
  | { type: 'failed'; id: number; error: WorkerError }
  | { type: 'log'; message: string }

/** An error as plain data: the class is lost between threads. */
export interface WorkerError {
  /** Of a CorralError, as the next two. */
  code?: ErrorCode
  details?: Record<string, unknown> | undefined
  retryAfter?: number | undefined
  message: string
  stack: string | undefined
}

function toError({ code, message, stack, details, retryAfter }: WorkerError): Error {
  if (code !== undefined) return new CorralError(code, message, { details, retryAfter })
  return Object.assign(new Error(message), stack === undefined ? {} : { stack })
}

/** Milliseconds for which the thread is kept after the last run. */
const IDLE_TIME = 5000

interface Run {
  request: TransferRequest
  /** What `locate` failed with: that ends the run. */
  failure: { error: unknown } | undefined
  /** Ends calls of `locate` with the run. */
  locating: AbortController
  settle(result: { files: TransferredFile[] } | { error: unknown }): void
}

/** Transfers whose network, disk and digest work is done in a worker thread, which runs while there is something to do. */
export class TransferThread implements Transfers {
  readonly #options: TransferOptions
  readonly #runs = new Map<number, Run>()
  #worker: Worker | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #nextId = 0
  #closed = false

  constructor(options: TransferOptions) {
    this.#options = options
  }

  async run(request: TransferRequest): Promise<TransferredFile[]> {
    const { signal, identity, files } = request
    signal.throwIfAborted()
    if (this.#closed) throw new CorralError('shutting_down', 'corral is shutting down.')
    const id = this.#nextId++
    const abort = () => this.#abort(id)
    try {
      return await new Promise((resolve, reject) => {
        this.#runs.set(id, {
          request,
          failure: undefined,
          locating: new AbortController(),
          settle: result => ('files' in result ? resolve(result.files) : reject(result.error))
        })
        signal.addEventListener('abort', abort, { once: true })
        // Callers pass files with other fields, which need not be cloneable.
        const plain = files.map(({ path, target, size, sha256, gitSha1 }) => ({
          path,
          target,
          size,
          ...(sha256 === undefined ? {} : { sha256 }),
          ...(gitSha1 === undefined ? {} : { gitSha1 })
        }))
        this.#post({ type: 'run', id, identity, files: plain })
      })
    } finally {
      signal.removeEventListener('abort', abort)
      this.#runs.delete(id)
      if (this.#runs.size === 0) this.#endWhenIdle()
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const [id, run] of this.#runs) {
      run.failure ??= { error: new CorralError('shutting_down', 'corral is shutting down.') }
      this.#abort(id)
    }
    while (this.#runs.size > 0) await new Promise(resolve => setTimeout(resolve, 10))
    clearTimeout(this.#idleTimer)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }

  #abort(id: number): void {
    this.#runs.get(id)?.locating.abort()
    this.#post({ type: 'abort', id })
  }

  #post(message: ToWorker): void {
    clearTimeout(this.#idleTimer)
    this.#worker ??= this.#start()
    this.#worker.ref()
    this.#worker.postMessage(message)
  }

  #endWhenIdle(): void {
    this.#worker?.unref()
    this.#idleTimer = setTimeout(() => {
      const worker = this.#worker
      this.#worker = undefined
      void worker?.terminate()
    }, IDLE_TIME).unref()
  }

  #start(): Worker {
    const worker = new Worker(new URL('./transfer-worker.js', import.meta.url), {
      workerData: { ...this.#options, firstDelay: FIRST_DELAY },
      // Received bytes go to memory outside the heap, which holds little.
      resourceLimits: { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 128 }
    })
    worker.on('message', (message: FromWorker) => this.#onMessage(worker, message))
    worker.on('error', error => this.#onEnd(worker, error))
    worker.on('exit', () => this.#onEnd(worker, new Error('the worker thread of the transfers ended')))
    return worker
  }

  #onMessage(worker: Worker, message: FromWorker): void {
    if (message.type === 'log') {
      process.emitWarning(message.message)
      return
    }
    const run = this.#runs.get(message.id)
    if (!run) return
    if (message.type === 'locate') void this.#locate(worker, run, message)
    else if (message.type === 'progress') run.request.onProgress(message.index, message.completed, message.total)
    else if (message.type === 'done') run.settle({ files: message.files })
    else if (run.request.signal.aborted) run.settle({ error: run.request.signal.reason })
    else run.settle(run.failure ?? { error: toError(message.error) })
  }

  async #locate(worker: Worker, run: Run, message: Extract<FromWorker, { type: 'locate' }>): Promise<void> {
    const { request, locating } = run
    let location: FileLocation | undefined
    try {
      location = await request.locate(message.index, AbortSignal.any([request.signal, locating.signal]))
    } catch (error) {
      run.failure ??= { error }
    }
    worker.postMessage({ type: 'located', request: message.request, location } satisfies ToWorker)
  }

  #onEnd(worker: Worker, error: Error): void {
    if (this.#worker !== worker) return
    this.#worker = undefined
    for (const run of this.#runs.values()) run.settle({ error })
  }
}
