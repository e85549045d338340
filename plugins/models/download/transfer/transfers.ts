import { setTimeout as sleep } from 'node:timers/promises'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { FIRST_DELAY_MS } from './limits.ts'

export interface TransferFile {
  path: string
  /** Absolute path of the complete, verified file. Partial data and its journal are beside it. */
  target: string
  /** Bytes; undefined if only the server knows. */
  size: number | undefined
  /** The digest to verify. Without any digest, only the size is verified. */
  sha256?: string | undefined
  gitSha1?: string | undefined
  /** The other files are useful without it. */
  isOptional?: boolean | undefined
}

export interface TransferRequest {
  /** Identifies the content (hub, repository, revision). Partial data of other content is discarded. */
  identity: string
  files: readonly TransferFile[]
  /** Returns a file's current location. Called again when one stops working. Its CorralErrors end the transfer. */
  locate(index: number, signal: AbortSignal): Promise<FileLocation>
  signal: AbortSignal
  /** Called with the bytes of one file that are on disk: at most ten times per second and file, and at its end. */
  onProgress(index: number, completed: number, total: number): void
}

export interface TransferredFile {
  size: number
  /** 64 hex digits, computed from the bytes. */
  sha256: string
  /** Why an optional file could not be downloaded. It then has no bytes. */
  leftOut?: string
}

export type Transfers = Pick<TransferThread, 'prepare' | 'run' | 'close'>

export interface TransferOptions {
  /** Maximum connections for one file, and for all files together. */
  connectionsPerFile: number
  connections: number
  /** Bytes per second of all transfers together; 0 means no limit. */
  bandwidthLimit: number
  /** A connection is replaced after this many milliseconds without a byte. */
  stallTimeout: number
}

export interface TransferEngineOptions extends TransferOptions {
  /** Upper limit of the first back-off, in milliseconds. */
  firstDelay: number
  log(message: string): void
}

/** Starts a run in the worker thread. The run's messages use their own port. */
export type RunMessage = Pick<TransferRequest, 'identity' | 'files'> & { port: MessagePort }

/** Messages about a run to the thread. `location` is the reason as text if it is missing for an optional file. */
export type ToRun = { type: 'located'; index: number; location: FileLocation | string | undefined } | { type: 'abort' }

/** Messages about a run from the worker thread. The last one is `done` or `failed`. */
export type FromRun =
  | { type: 'locate'; index: number }
  | { type: 'progress'; index: number; completed: number; total: number }
  | { type: 'done'; files: TransferredFile[] }
  /** A CorralError is sent as plain data, since its class is lost between threads. */
  | { type: 'failed'; error: Error | Pick<CorralError, 'code' | 'message' | 'details' | 'retryAfter'> }

const IDLE_MS = 5000

/** Runs transfers in a worker thread, which exists only while it is needed. */
export class TransferThread {
  readonly #options: TransferOptions
  readonly #runs = new Set<AbortController>()
  #worker: Worker | undefined
  #failure: Error | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: TransferOptions) {
    this.#options = options
  }

  /** Starts the threads for a run that will probably follow soon. */
  prepare(): void {
    if (this.#closed || this.#worker) return
    this.#worker = this.#start()
    this.#endWhenIdle()
  }

  /**
   * Downloads and verifies files, and returns them in order. Existing files are verified and kept. After a failure or
   * an abort, partial data stays, and the next run continues with it. An optional file that fails is left out.
   * @throws CorralError `hub_unreachable`, `hub_forbidden`, `hub_rate_limited`, `checksum_mismatch`,
   * `insufficient_storage`; the signal's reason
   */
  async run(request: TransferRequest): Promise<TransferredFile[]> {
    const ending = new AbortController()
    const signal = AbortSignal.any([request.signal, ending.signal])
    signal.throwIfAborted()
    if (this.#closed) throw shuttingDown()
    this.#runs.add(ending)
    const { port1: port, port2 } = new MessageChannel()
    const post = (message: ToRun) => port.postMessage(message)
    const abort = () => post({ type: 'abort' })
    signal.addEventListener('abort', abort)
    try {
      return await new Promise((resolve, reject) => {
        let failure: { error: unknown } | undefined
        const locate = async (index: number) => {
          const location = await request.locate(index, signal).catch(error => {
            if (request.files[index]!.isOptional) return errorMessage(error)
            failure ??= { error }
            return undefined
          })
          post({ type: 'located', index, location })
        }
        port.on('message', (message: FromRun) => {
          if (message.type === 'locate') void locate(message.index)
          else if (message.type === 'progress') request.onProgress(message.index, message.completed, message.total)
          else if (message.type === 'done') resolve(message.files)
          else if (signal.aborted) reject(signal.reason)
          else reject(failure ? failure.error : toError(message.error))
        })
        port.on('close', () => reject(this.#failure ?? new Error('the transfer worker thread ended')))
        // Copy the fields: callers pass files with other fields, which may not be cloneable.
        const files = request.files.map(({ path, target, size, sha256, gitSha1, isOptional }) => {
          return { path, target, size, sha256, gitSha1, isOptional }
        })
        this.#post({ identity: request.identity, files, port: port2 })
      })
    } finally {
      signal.removeEventListener('abort', abort)
      port.close()
      this.#runs.delete(ending)
      if (this.#runs.size === 0) this.#endWhenIdle()
    }
  }

  /** Ends all runs, and waits until nothing is being written. */
  async close(): Promise<void> {
    this.#closed = true
    for (const ending of this.#runs) ending.abort(shuttingDown())
    while (this.#runs.size > 0) await sleep(10)
    clearTimeout(this.#idleTimer)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }

  #post(message: RunMessage): void {
    clearTimeout(this.#idleTimer)
    this.#worker ??= this.#start()
    this.#worker.postMessage(message, [message.port])
  }

  #endWhenIdle(): void {
    this.#idleTimer = setTimeout(() => {
      const worker = this.#worker
      this.#worker = undefined
      void worker?.terminate()
    }, IDLE_MS).unref()
  }

  #start(): Worker {
    this.#failure = undefined
    const { connections, connectionsPerFile, bandwidthLimit, stallTimeout } = this.#options
    const worker = new Worker(new URL('./transfer-worker.js', import.meta.url), {
      workerData: { connections, connectionsPerFile, bandwidthLimit, stallTimeout, firstDelay: FIRST_DELAY_MS },
      // The heap can be small, since received bytes are stored outside it.
      resourceLimits: { maxYoungGenerationSizeMb: 4, maxOldGenerationSizeMb: 128 }
    })
    worker.on('message', (warning: string) => process.emitWarning(warning))
    worker.on('error', error => {
      this.#failure = error
    })
    worker.on('exit', () => {
      if (this.#worker === worker) this.#worker = undefined
    })
    // The ports of runs keep the process alive while there is work.
    worker.unref()
    return worker
  }
}

const shuttingDown = () => new CorralError('shutting_down', 'corral is shutting down.')

const toError = (error: Extract<FromRun, { type: 'failed' }>['error']): Error =>
  error instanceof Error ? error : new CorralError(error.code, error.message, error)
