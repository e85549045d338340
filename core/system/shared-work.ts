import type { OnProgress, Progress, Waiting } from '../contracts/progress.ts'
import { untilAborted } from './abort-signals.ts'

interface Work<T> {
  controller: AbortController
  callers: Set<OnProgress>
  progress: Progress | undefined
  result: Promise<T>
}

/** Work that runs once for all its callers, and is cancelled when the last one leaves, unless it is `lasting`. */
export class SharedWork<T> {
  readonly #works = new Map<string, Work<T>>()
  readonly #isLasting: boolean

  constructor({ lasting = false } = {}) {
    this.#isLasting = lasting
  }

  /** Joins the work of this key, or starts it. @throws the work's error, or the caller's abort reason */
  async run(key: string, waiting: Waiting, start: (waiting: Required<Waiting>) => Promise<T>): Promise<T> {
    for (;;) {
      waiting.signal?.throwIfAborted()
      const work = this.#works.get(key) ?? this.#begin(key, start)
      if (!work.controller.signal.aborted) return await this.#join(work, waiting)
      // The work is being cancelled. Start its successor after it has ended completely.
      await work.result.catch(() => undefined)
    }
  }

  has(key: string): boolean {
    return this.#works.has(key)
  }

  /** Number of callers that wait for the work of this key. */
  callers(key: string): number {
    return this.#works.get(key)?.callers.size ?? 0
  }

  /** Cancels the work of matching keys with this error, and waits for it to end. */
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
    // A separate function, since two callers may pass the same one.
    const caller: OnProgress = progress => onProgress?.(progress)
    work.callers.add(caller)
    if (work.progress) caller(work.progress)
    try {
      return await untilAborted(work.result, signal)
    } catch (error) {
      work.callers.delete(caller)
      if (signal?.aborted && work.callers.size === 0 && !this.#isLasting) {
        // The last caller has left. Wait for the work to end, so that the next work of this key finds none running.
        work.controller.abort(signal.reason)
        await work.result.catch(() => undefined)
      }
      throw error
    } finally {
      work.callers.delete(caller)
    }
  }
}
