/** Lets tasks with the same key run one after another, in order; others run side by side. */
export class KeyedQueue {
  readonly #tails = new Map<string, Promise<void>>()

  /** Runs the task when all earlier ones of its key have ended. Aborting ends the waiting; a task that runs goes on. */
  async run<T>(key: string, task: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted()
    let started = false
    const turn = (this.#tails.get(key) ?? Promise.resolve()).then(() => {
      signal?.throwIfAborted()
      started = true
      return task()
    })
    const tail = turn.then(
      () => {},
      () => {}
    )
    this.#tails.set(key, tail)
    void tail.then(() => {
      if (this.#tails.get(key) === tail) this.#tails.delete(key)
    })
    if (!signal) return turn
    return new Promise<T>((resolve, reject) => {
      const onAbort = () => {
        if (!started) reject(signal.reason)
      }
      signal.addEventListener('abort', onAbort, { once: true })
      void tail.then(() => signal.removeEventListener('abort', onAbort))
      turn.then(resolve, reject)
    })
  }
}
