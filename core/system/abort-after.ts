/**
 * An `AbortSignal.timeout` that is not lost: if only `AbortSignal.any` refers to such a signal, Node.js 20 may
 * garbage-collect it, and its timeout never comes.
 * @param ms milliseconds
 * @returns a signal that aborts after them with a `TimeoutError`; it does not keep the process alive
 */
export function abortAfter(ms: number): AbortSignal {
  const limit = AbortSignal.timeout(ms)
  // A signal with a listener is not collected.
  limit.addEventListener('abort', () => {}, { once: true })
  return limit
}
