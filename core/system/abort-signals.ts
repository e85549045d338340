import { setMaxListeners } from 'node:events'

/** An `AbortSignal.timeout` that Node.js 20 cannot lose when only `AbortSignal.any` refers to it. */
export function abortAfter(ms: number): AbortSignal {
  const limit = AbortSignal.timeout(ms)
  // A signal with a listener is not collected.
  limit.addEventListener('abort', () => {}, { once: true })
  return limit
}

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

/** Returns a promise and the function that resolves it, as `Promise.withResolvers` of Node.js 22 does. */
export function withResolver<T = void>() {
  let resolve!: (value: T) => void
  const promise = new Promise<T>(settle => {
    resolve = settle
  })
  return { promise, resolve }
}

/** Waits for `pending` until the signal is aborted. @throws the signal's reason; the pending work continues */
export async function untilAborted<T>(pending: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await pending
  let onAbort!: () => void
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
  })
  if (signal.aborted) onAbort()
  try {
    return await Promise.race([aborted, pending])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
