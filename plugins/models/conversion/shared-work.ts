import { type OnProgress, type Progress, untilAborted, type Waiting } from '../../../core/contracts/progress.ts'

interface Work<T> {
  controller: AbortController
  /** One for each caller that waits for the result. */
  callers: Set<OnProgress>
  progress: Progress | undefined
  result: Promise<T>
}

/** Work that several callers may want at once: it is done once for all of them, and cancelled when the last has left. */
export class SharedWork<T> {
  readonly #works = new Map<string, Work<T>>()

  /**
   * Joins the work of this key, or starts it.
   * @throws what the work throws; the reason of the caller's signal when that was aborted
   */
  async run(key: string, waiting: Waiting, start: (waiting: Required<Waiting>) => Promise<T>): Promise<T> {
    for (;;) {
      waiting.signal?.throwIfAborted()
      const work = this.#works.get(key) ?? this.#begin(key, start)
      if (!work.controller.signal.aborted) return await this.#join(work, waiting)
      // It is being cancelled: its successor starts when nothing of it is left.
      await work.result.catch(() => undefined)
    }
  }

  /** Whether work of this key is running. */
  has(key: string): boolean {
    return this.#works.has(key)
  }

  /** Cancels the work of keys that fit, with this error for its callers; settles when it has ended. */
  async end(fits: (key: string) => boolean, error: Error): Promise<void> {
    const ending = [...this.#works].filter(([key]) => fits(key)).map(([, work]) => work)
    for (const work of ending) work.controller.abort(error)
    await Promise.allSettled(ending.map(work => work.result))
  }

  #begin(key: string, start: (waiting: Required<Waiting>) => Promise<T>): Work<T> {
    const controller = new AbortController()
    const work: Work<T> = {
      controller,
      callers: new Set(),
      progress: undefined,
      result: Promise.resolve().then(() =>
        start({
          signal: controller.signal,
          onProgress: progress => {
            work.progress = progress
            for (const caller of [...work.callers]) caller(progress)
          }
        })
      )
    }
    this.#works.set(key, work)
    const forget = () => void this.#works.delete(key)
    work.result.then(forget, forget)
    return work
  }

  async #join(work: Work<T>, { signal, onProgress }: Waiting): Promise<T> {
    // A function of its own, since two callers may pass the same one.
    const caller: OnProgress = progress => onProgress?.(progress)
    work.callers.add(caller)
    if (work.progress) caller(work.progress)
    try {
      return await untilAborted(work.result, signal)
    } catch (error) {
      work.callers.delete(caller)
      if (signal?.aborted && work.callers.size === 0) {
        // That was the last caller. Its call ends after the work, so that what follows finds nothing of it running.
        work.controller.abort(signal.reason)
        await work.result.catch(() => undefined)
      }
      throw error
    } finally {
      work.callers.delete(caller)
    }
  }
}
