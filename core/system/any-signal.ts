import { setMaxListeners } from 'node:events'

/**
 * Runs work with a signal that aborts with any of these signals, for its reason. Unlike `AbortSignal.any` it does not
 * leak: in Node.js 20 and 22, a long-lived signal remembers every signal that was ever made from it.
 */
export async function withAnySignal<T>(
  signals: readonly AbortSignal[],
  use: (signal: AbortSignal) => Promise<T>
): Promise<T> {
  const any = new AbortController()
  const abort = ({ target }: Event) => any.abort((target as AbortSignal).reason)
  // A signal may have as many listeners as there are requests.
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
