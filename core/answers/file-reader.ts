import { Worker } from 'node:worker_threads'

/** The text of a PDF by page, or why it cannot be read. Pages and characters over their limits are left out. */
export type PdfText = { pages: number; texts: string[] } | { fault: 'encrypted' | 'damaged' | 'memory' | 'slow' }

export interface PdfLimits {
  maxPages: number
  /** The last text has one character more if there are more. */
  maxCharacters: number
  /** Bytes that PDFium may use. */
  memory: number
  /** Milliseconds. */
  time: number
}

export type PdfJob = Omit<PdfLimits, 'time'> & { bytes: Uint8Array }

/** PDFs that are read at the same time, each in a thread. */
const MAX_WORKERS = 2
const MAX_HEAP_MB = 64
/** Characters of all cached texts. */
const MAX_CACHED = 16 * 2 ** 20

/**
 * Extracts the text of PDFs in worker threads. The texts are cached, because the history of a conversation contains
 * the same PDFs in every request.
 */
export class PdfReader {
  /** Results by digest and limits, the least recently used first. */
  readonly #cache = new Map<string, PdfText>()
  #cached = 0
  readonly #turns = new ClientTurns(MAX_WORKERS)

  /**
   * @param id the digest of the PDF, or another id of this content
   * @param load returns the PDF. It is called when the client has its turn, so that waiting requests hold no copies.
   * @param client the client, whose PDFs are read one after the other
   * @throws the reason of the signal, and errors of `load`
   */
  async read(
    id: string,
    load: () => Uint8Array | Promise<Uint8Array>,
    limits: PdfLimits,
    client: string,
    signal: AbortSignal
  ): Promise<PdfText> {
    const key = `${id} ${Object.values(limits)}`
    const found = this.#find(key)
    if (found) return found
    const end = await this.#turns.begin(client, signal)
    try {
      // Another request of the client may have contained the same PDF.
      return this.#find(key) ?? this.#keep(key, await readInWorker(await load(), limits, signal))
    } finally {
      end()
    }
  }

  #find(key: string): PdfText | undefined {
    const found = this.#cache.get(key)
    if (found) {
      this.#cache.delete(key)
      this.#cache.set(key, found)
    }
    return found
  }

  #keep(key: string, result: PdfText): PdfText {
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

/** The characters of a result. Results without text count too, so that their number is limited. */
function cost(result: PdfText): number {
  const texts = 'texts' in result ? result.texts : []
  return texts.reduce((sum, { length }) => sum + length, 1000)
}

async function readInWorker(bytes: Uint8Array, { time, ...limits }: PdfLimits, signal: AbortSignal): Promise<PdfText> {
  signal.throwIfAborted()
  const copy = new Uint8Array(bytes)
  const worker = new Worker(new URL('./pdf-worker.js', import.meta.url), {
    workerData: { ...limits, bytes: copy } satisfies PdfJob,
    transferList: [copy.buffer],
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB, maxYoungGenerationSizeMb: 16 },
    execArgv: []
  })
  let timer: NodeJS.Timeout | undefined
  let abort = () => {}
  try {
    return await new Promise<PdfText>((resolve, reject) => {
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
