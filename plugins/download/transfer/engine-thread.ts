import { Worker } from 'node:worker_threads'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { CorralError } from '../../../core/errors.ts'
import { FIRST_DELAY } from './back-off.ts'
import { errorFrom, type FromEngine, type ToEngine } from './engine-messages.ts'
import type { TransferOptions, TransferRequest, TransferredFile, Transfers } from './transfer.ts'

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
    const worker = new Worker(new URL('./engine-worker.js', import.meta.url), {
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
