import { Worker } from 'node:worker_threads'

export type ReadFault = { fault: 'encrypted' | 'damaged' | 'memory' | 'slow' }
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

/** The result for each kind of file: the text of a PDF, and a PNG in base64 for a WebP. */
interface Results {
  pdf: PdfText
  webp: { png: string }
}
type Result = Results[keyof Results] | ReadFault

/** Files that are read at the same time, each in a thread. */
const MAX_WORKERS = 2
const MAX_HEAP_MB = 64
/** Characters of all cached results. */
const MAX_CACHED = 32 * 2 ** 20

/**
 * Reads files in worker threads. The results are cached, because the history of a conversation contains the same files
 * in every request.
 */
export class FileReader {
  /** Results by digest and limits, the least recently used first. */
  readonly #cache = new Map<string, Result>()
  #cached = 0
  readonly #turns = new ClientTurns(MAX_WORKERS)

  /**
   * @param id the digest of the file, or another id of its content
   * @param load returns the file. It is called when the client has its turn, so that waiting requests hold no copies.
   * @param client the client, whose files are read one after the other
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
    let result = this.#find(key)
    if (!result) {
      const end = await this.#turns.begin(client, signal)
      try {
        // Another request of the client may have contained the same file.
        result = this.#find(key) ?? this.#keep(key, await readInWorker(kind, await load(), limits, signal))
      } finally {
        end()
      }
    }
    return result as Results[Kind] | ReadFault
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

/** Lets a few clients work at the same time, each on one thing. The others wait, and take turns. */
class ClientTurns {
  readonly #max: number
  readonly #running = new Set<string>()
  /** Starts the waiting work of each client. The client whose turn was last comes last. */
  readonly #waiting = new Map<string, Set<() => void>>()

  constructor(max: number) {
    this.#max = max
  }

  /** @returns ends the turn @throws the reason of the signal */
  async begin(client: string, signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted()
    await new Promise<void>((resolve, reject) => {
      const queue = this.#waiting.get(client) ?? new Set()
      const start = () => {
        signal.removeEventListener('abort', leave)
        resolve()
      }
      const leave = () => {
        queue.delete(start)
        if (queue.size === 0) this.#waiting.delete(client)
        reject(signal.reason)
      }
      signal.addEventListener('abort', leave, { once: true })
      this.#waiting.set(client, queue.add(start))
      this.#startNext()
    })
    return () => {
      this.#running.delete(client)
      this.#startNext()
    }
  }

  #startNext(): void {
    for (const [client, queue] of this.#waiting) {
      if (this.#running.size >= this.#max) return
      if (this.#running.has(client)) continue
      const [start] = queue
      queue.delete(start!)
      this.#waiting.delete(client)
      if (queue.size > 0) this.#waiting.set(client, queue)
      this.#running.add(client)
      start!()
    }
  }
}

/** The characters of a result. Results without any count too, so that their number is limited. */
function cost(result: Result): number {
  const texts = 'texts' in result ? result.texts : 'png' in result ? [result.png] : []
  return texts.reduce((sum, { length }) => sum + length, 1000)
}

async function readInWorker(
  kind: keyof Results,
  bytes: Uint8Array,
  { time, ...limits }: ReadLimits,
  signal: AbortSignal
): Promise<Result> {
  signal.throwIfAborted()
  const copy = new Uint8Array(bytes)
  const worker = new Worker(new URL(`./${kind}-worker.js`, import.meta.url), {
    workerData: { ...limits, bytes: copy } satisfies ReadJob,
    transferList: [copy.buffer],
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB, maxYoungGenerationSizeMb: 16 },
    execArgv: []
  })
  let timer: NodeJS.Timeout | undefined
  let abort = () => {}
  try {
    return await new Promise<Result>((resolve, reject) => {
      timer = setTimeout(() => resolve({ fault: 'slow' }), time)
      abort = () => reject(signal.reason)
      signal.addEventListener('abort', abort, { once: true })
      worker.once('message', resolve)
      worker.once('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'ERR_WORKER_OUT_OF_MEMORY') resolve({ fault: 'memory' })
        else reject(error)
      })
    })
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', abort)
    await worker.terminate()
  }
}
