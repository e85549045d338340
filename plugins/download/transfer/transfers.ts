import { Worker } from 'node:worker_threads'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { CorralError, type ErrorCode, messageOf } from '../../../core/errors.ts'
import { FIRST_DELAY } from './retries.ts'

/** One file to be fetched. */
export interface TransferFile {
  /** In the repository; for messages. */
  path: string
  /** Absolute path that it gets once it is whole and verified. Beside it lie its partial data and their journal. */
  target: string
  /** Bytes; undefined where only the place itself knows. */
  size: number | undefined
  /** What it is verified by; where there is neither, by its size. */
  sha256?: string
  gitSha1?: string
}

export interface TransferRequest {
  /** Names the content of all files (hub, repository, revision): partial data of another one are not continued. */
  identity: string
  files: readonly TransferFile[]
  /** Where the bytes of a file are now; asked anew whenever a place stops working. Its CorralErrors end the transfer. */
  locate(index: number, signal: AbortSignal): Promise<FileLocation>
  signal: AbortSignal
  /** Bytes of one file that are on disk: at most ten times a second and file, and at its end. */
  onProgress(index: number, completed: number, total: number): void
}

/** What a verified file turned out to be. */
export interface TransferredFile {
  /** Bytes. */
  size: number
  /** 64 hex digits, computed from the bytes. */
  sha256: string
}

/** Fetches files, however often they are interrupted. */
export interface Transfers {
  /**
   * Fetches and verifies files; gives what they are, in order. What is there already is verified and kept. After a
   * failure or an abort partial data stay, and the next run continues them.
   * @throws CorralError `hub_unreachable`, `hub_forbidden`, `hub_rate_limited`, `checksum_mismatch`,
   * `insufficient_storage`; the signal's reason
   */
  run(request: TransferRequest): Promise<TransferredFile[]>
  /** Ends all runs; settles when nothing is written any longer. */
  close(): Promise<void>
}

export interface TransferOptions {
  /** Most connections for one file, and for all files together. */
  connectionsPerFile: number
  connections: number
  /** Bytes a second of all transfers together; 0 is no limit. */
  bandwidthLimit: number
  /** Milliseconds without a byte after which a connection is replaced. */
  stallTimeout: number
}

/** What the engine's thread is told. */
export type ToEngine =
  | { type: 'run'; id: number; identity: string; files: readonly TransferFile[] }
  | { type: 'located'; question: number; location: FileLocation | undefined }
  | { type: 'abort'; id: number }

/** What it tells. */
export type FromEngine =
  | { type: 'locate'; id: number; question: number; index: number }
  | { type: 'progress'; id: number; index: number; completed: number; total: number }
  | { type: 'done'; id: number; files: TransferredFile[] }
  | { type: 'failed'; id: number; error: PlainError }
  | { type: 'log'; message: string }

/** An error as it crosses threads. */
export interface PlainError {
  code: ErrorCode | undefined
  message: string
  stack: string | undefined
  details: Record<string, unknown> | undefined
  retryAfter: number | undefined
}

export function plainError(error: unknown): PlainError {
  const known = error instanceof CorralError ? error : undefined
  return {
    code: known?.code,
    message: messageOf(error),
    stack: error instanceof Error ? error.stack : undefined,
    details: known?.details,
    retryAfter: known?.retryAfter
  }
}

export function errorFrom({ code, message, stack, details, retryAfter }: PlainError): Error {
  if (code !== undefined) {
    return new CorralError(code, message, {
      ...(details === undefined ? {} : { details }),
      ...(retryAfter === undefined ? {} : { retryAfter })
    })
  }
  const error = new Error(message)
  if (stack !== undefined) error.stack = stack
  return error
}

export { partialBytes, removePartial } from './journal.ts'

/** Transfers that share connections and a bandwidth limit. They work in a thread that lives while there is something to do. */
export function createTransfers(options: TransferOptions): Transfers {
  return new EngineThread(options)
}

/** Milliseconds after the last run for which the thread is kept. */
const IDLE = 5000

interface Run {
  request: TransferRequest
  /** What `locate` failed with: that ends the run. */
  failure: { error: unknown } | undefined
  questions: AbortController
  settle(result: { files: TransferredFile[] } | { error: unknown }): void
}

/** Transfers whose network, disk and digest work is done in another thread. */
export class EngineThread implements Transfers {
  readonly #options: TransferOptions
  readonly #runs = new Map<number, Run>()
  #worker: Worker | undefined
  #idle: NodeJS.Timeout | undefined
  #next = 0
  #closed = false

  constructor(options: TransferOptions) {
    this.#options = options
  }

  async run(request: TransferRequest): Promise<TransferredFile[]> {
    const { signal, identity, files } = request
    signal.throwIfAborted()
    if (this.#closed) throw new CorralError('shutting_down', 'corral is shutting down.')
    const id = this.#next++
    const abort = () => this.#abort(id)
    try {
      return await new Promise((resolve, reject) => {
        this.#runs.set(id, {
          request,
          failure: undefined,
          questions: new AbortController(),
          settle: result => ('files' in result ? resolve(result.files) : reject(result.error))
        })
        signal.addEventListener('abort', abort, { once: true })
        const plain = files.map(({ path, target, size, sha256, gitSha1 }) => ({
          path,
          target,
          size,
          ...(sha256 === undefined ? {} : { sha256 }),
          ...(gitSha1 === undefined ? {} : { gitSha1 })
        }))
        this.#tell({ type: 'run', id, identity, files: plain })
      })
    } finally {
      signal.removeEventListener('abort', abort)
      this.#runs.delete(id)
      if (this.#runs.size === 0) this.#rest()
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const id of this.#runs.keys()) {
      this.#runs.get(id)!.failure ??= { error: new CorralError('shutting_down', 'corral is shutting down.') }
      this.#abort(id)
    }
    while (this.#runs.size > 0) await new Promise(resolve => setTimeout(resolve, 10))
    clearTimeout(this.#idle)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }

  #abort(id: number): void {
    this.#runs.get(id)?.questions.abort()
    this.#tell({ type: 'abort', id })
  }

  #tell(message: ToEngine): void {
    clearTimeout(this.#idle)
    this.#worker ??= this.#start()
    this.#worker.ref()
    this.#worker.postMessage(message)
  }

  #rest(): void {
    this.#worker?.unref()
    this.#idle = setTimeout(() => {
      const worker = this.#worker
      this.#worker = undefined
      void worker?.terminate()
    }, IDLE).unref()
  }

  #start(): Worker {
    const worker = new Worker(new URL('./transfer-worker.js', import.meta.url), {
      workerData: { ...this.#options, firstDelay: FIRST_DELAY },
      // What comes is read into memory of its own; the heap holds little.
      resourceLimits: { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 128 }
    })
    worker.on('message', (message: FromEngine) => this.#onMessage(worker, message))
    worker.on('error', error => this.#onEnd(worker, error))
    worker.on('exit', () => this.#onEnd(worker, new Error('the thread of the transfers ended')))
    return worker
  }

  #onMessage(worker: Worker, message: FromEngine): void {
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
    else run.settle({ error: run.failure ? run.failure.error : errorFrom(message.error) })
  }

  async #locate(worker: Worker, run: Run, { question, index }: Extract<FromEngine, { type: 'locate' }>): Promise<void> {
    const { request, questions } = run
    let location: FileLocation | undefined
    try {
      location = await request.locate(index, AbortSignal.any([request.signal, questions.signal]))
    } catch (error) {
      run.failure ??= { error }
    }
    worker.postMessage({ type: 'located', question, location } satisfies ToEngine)
  }

  #onEnd(worker: Worker, error: Error): void {
    if (this.#worker !== worker) return
    this.#worker = undefined
    for (const run of this.#runs.values()) run.settle({ error })
  }
}
