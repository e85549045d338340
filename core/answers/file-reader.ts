import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { isSystemError } from '../errors.ts'
import { abortAfter, untilAborted } from '../system/abort-signals.ts'
import { KeyedQueue } from '../system/keyed-queue.ts'

export type ReadFault = { fault: 'encrypted' | 'damaged' | 'codec' | 'memory' | 'slow' }
/** The text of a PDF by page. Pages and characters over their limits are left out. */
export type PdfText = { pages: number; texts: string[] }

export interface ReadLimits {
  maxPages: number
  /** The last text has one character more if there are more. */
  maxCharacters: number
  /** Bytes that the decoder may use. */
  memory: number
  /** Milliseconds. */
  time: number
}

export type ReadJob = Omit<ReadLimits, 'time'> & { bytes: Uint8Array }

/** The result for each kind of file: the text of a PDF, a PNG in base64 for a WebP, and a WAV for a sound in Opus. */
interface Results {
  pdf: PdfText
  webp: { png: string }
  sound: { wav: Uint8Array }
}
type Result = Results[keyof Results] | ReadFault

/** Files that are read at the same time, each in a thread. */
const MAX_WORKERS = 2
const MAX_HEAP_MB = 64
/** Characters and bytes of all cached results. */
const MAX_CACHED = 32 * 2 ** 20

/**
 * Reads files in worker threads. The results are cached, because the history of a conversation contains the same files
 * in every request.
 */
export class FileReader {
  /** Results by digest and limits, the least recently used first. */
  readonly #cache = new Map<string, Result>()
  #cached = 0
  /** The files of a client are read one after the other, so that clients take turns. */
  readonly #clients = new KeyedQueue()
  #idle = MAX_WORKERS
  readonly #waiting: (() => void)[] = []

  /**
   * @param id the digest of the file, or another id of its content
   * @param load returns the file. It is called when the client has its turn, so that waiting requests hold no copies.
   * @throws the reason of the signal, and errors of `load`
   */
  async read<Kind extends keyof Results>(
    kind: Kind,
    id: string,
    load: () => Uint8Array | Promise<Uint8Array>,
    limits: ReadLimits,
    client: string,
    signal: AbortSignal
  ): Promise<Results[Kind] | ReadFault> {
    const key = `${kind} ${id} ${Object.values(limits)}`
    // Another request of the client may have contained the same file.
    const readOnce = async () =>
      this.#find(key) ?? this.#keep(key, await readInWorker(kind, await load(), limits, signal))
    const inTurn = () => this.#clients.run(client, () => this.#withWorker(readOnce, signal))
    const result = this.#find(key) ?? (await untilAborted(inTurn(), signal))
    return result as Results[Kind] | ReadFault
  }

  async #withWorker(work: () => Promise<Result>, signal: AbortSignal): Promise<Result> {
    if (this.#idle > 0) this.#idle--
    else await new Promise<void>(start => this.#waiting.push(start))
    try {
      signal.throwIfAborted()
      return await work()
    } finally {
      const startNext = this.#waiting.shift()
      if (startNext) startNext()
      else this.#idle++
    }
  }

  #find(key: string): Result | undefined {
    const found = this.#cache.get(key)
    if (found) {
      this.#cache.delete(key)
      this.#cache.set(key, found)
    }
    return found
  }

  #keep(key: string, result: Result): Result {
    this.#cache.set(key, result)
    this.#cached += cost(result)
    for (const [oldest, old] of this.#cache) {
      if (this.#cached <= MAX_CACHED) break
      this.#cache.delete(oldest)
      this.#cached -= cost(old)
    }
    return result
  }
}

/** The characters or bytes of a result. Results without any count too, so that their number is limited. */
function cost(result: Result): number {
  const contents: { length: number }[] = 'texts' in result ? result.texts : Object.values(result)
  return contents.reduce((sum, { length }) => sum + length, 1000)
}

async function readInWorker(
  kind: keyof Results,
  bytes: Uint8Array,
  { time, ...limits }: ReadLimits,
  signal: AbortSignal
): Promise<Result> {
  const copy = new Uint8Array(bytes)
  const worker = new Worker(new URL(`./${kind}-worker.js`, import.meta.url), {
    workerData: { ...limits, bytes: copy } satisfies ReadJob,
    transferList: [copy.buffer],
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB, maxYoungGenerationSizeMb: 16 },
    execArgv: []
  })
  try {
    const [result] = await once(worker, 'message', { signal: AbortSignal.any([signal, abortAfter(time)]) })
    return result
  } catch (error) {
    signal.throwIfAborted()
    if (isSystemError(error, 'ERR_WORKER_OUT_OF_MEMORY')) return { fault: 'memory' }
    if ((error as Error).name === 'AbortError') return { fault: 'slow' }
    throw error
  } finally {
    await worker.terminate()
  }
}
