import { untilAborted } from './abort-signals.ts'

/** Runs tasks with the same key one after another, in order. Others run side by side. */
export class KeyedQueue {
  readonly #last = new Map<string, Promise<unknown>>()

  /** Runs the task after all earlier ones of its key. @throws the signal's reason if it is aborted before that */
  async run<T>(key: string, task: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const before = this.#last.get(key) ?? Promise.resolve()
    const result = untilAborted(before, signal).then(() => task())
    const last = before.then(() => result.catch(() => undefined))
    this.#last.set(key, last)
    try {
      return await result
    } finally {
      if (this.#last.get(key) === last) this.#last.delete(key)
    }
  }
}
