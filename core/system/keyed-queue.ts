import { untilAborted } from './abort-signals.ts'

/** Returns a function that runs tasks one after another, in order. A failed task does not stop the next ones. */
export function oneByOne(): <T>(task: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  return task => {
    const result = last.then(task)
    last = result.catch(() => undefined)
    return result
  }
}

/** Runs tasks with the same key one after another, in order. Others run side by side. */
export class KeyedQueue {
  readonly #queues = new Map<string, { count: number; last: Promise<unknown> }>()

  /** Number of a key's tasks that run or wait. */
  count(key: string): number {
    return this.#queues.get(key)?.count ?? 0
  }

  /** Runs the task after all earlier ones of its key. @throws the signal's reason if it is aborted before that */
  async run<T>(key: string, task: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const queue = this.#queues.get(key) ?? { count: 0, last: Promise.resolve() }
    this.#queues.set(key, queue)
    queue.count += 1
    const before = queue.last
    const result = untilAborted(before, signal).then(() => task())
    queue.last = before.then(() => result.catch(() => undefined))
    try {
      return await result
    } finally {
      queue.count -= 1
      if (queue.count === 0) this.#queues.delete(key)
    }
  }
}
