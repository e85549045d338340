import { type OnProgress, type Progress, untilAborted, type Waiting } from '../../core/contracts/progress.ts'

interface Work<T> {
  controller: AbortController
  listeners: Set<OnProgress>
  progress: Progress | undefined
  waiting: number
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
      if (!work.controller.signal.aborted) return await this.#join(key, work, waiting)
      // It is being cancelled: its successor starts when nothing of it is left.
      await work.result.catch(() => undefined)
    }
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
      listeners: new Set(),
      progress: undefined,
      waiting: 0,
      result: Promise.resolve().then(() =>
        start({
          signal: controller.signal,
          onProgress: progress => {
            work.progress = progress
            for (const listener of [...work.listeners]) listener(progress)
          }
        })
      )
    }
    this.#works.set(key, work)
    const forget = () => {
      if (this.#works.get(key) === work) this.#works.delete(key)
    }
    work.result.then(forget, forget)
    return work
  }

  async #join(key: string, work: Work<T>, { signal, onProgress }: Waiting): Promise<T> {
    work.waiting++
    // One listener a caller, even where two pass the same function.
    const listener: OnProgress | undefined = onProgress && (progress => onProgress(progress))
    if (listener) {
      work.listeners.add(listener)
      if (work.progress) listener(work.progress)
    }
    try {
      return await untilAborted(work.result, signal)
    } catch (error) {
      if (signal?.aborted && --work.waiting === 0 && this.#works.get(key) === work) {
        // That was the last caller. Its call ends after the work, so that what follows finds nothing of it running.
        work.controller.abort(signal.reason)
        await work.result.catch(() => undefined)
      }
      throw error
    } finally {
      if (listener) work.listeners.delete(listener)
    }
  }
}
