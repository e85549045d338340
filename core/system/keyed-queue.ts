/** Runs tasks with the same key one after another, in order. Others run side by side. */
export class KeyedQueue {
  readonly #queues = new Map<string, { count: number; last: Promise<unknown> }>()

  /** Number of a key's tasks that run or wait. */
  count(key: string): number {
    return this.#queues.get(key)?.count ?? 0
  }

  /** Runs the task after all earlier ones of its key, unless the signal is aborted by then. */
  async run<T>(key: string, task: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const queue = this.#queues.get(key) ?? { count: 0, last: Promise.resolve() }
    this.#queues.set(key, queue)
    queue.count += 1
    const result = queue.last.then(() => {
      signal?.throwIfAborted()
      return task()
    })
    queue.last = result.catch(() => undefined)
    try {
      return await result
    } finally {
      queue.count -= 1
      if (queue.count === 0) this.#queues.delete(key)
    }
  }
}
