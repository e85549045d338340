import { setMaxListeners } from 'node:events'

/**
 * Works with a signal that aborts with any of these, for its reason. Unlike `AbortSignal.any` it leaves nothing behind: with
 * Node.js 20 and 22, a signal that outlives requests remembers each one that was ever made from it.
 */
export async function withAnySignal<T>(
  signals: readonly AbortSignal[],
  use: (signal: AbortSignal) => Promise<T>
): Promise<T> {
  const any = new AbortController()
  const abort = ({ target }: Event) => any.abort((target as AbortSignal).reason)
  // As many listen to one of them as there are requests.
  setMaxListeners(0, ...signals)
  try {
    for (const signal of signals) {
      if (signal.aborted) any.abort(signal.reason)
      else signal.addEventListener('abort', abort)
    }
    return await use(any.signal)
  } finally {
    for (const signal of signals) signal.removeEventListener('abort', abort)
  }
}
