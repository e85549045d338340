/**
 * `AbortSignal.timeout` that is sure to come: where only `AbortSignal.any` refers to such a signal, Node.js 20 forgets it at
 * a collection of garbage, and what it limits never ends.
 * @param ms milliseconds
 * @returns aborts after them with a `TimeoutError`; until then it keeps no process alive
 */
export function abortAfter(ms: number): AbortSignal {
  const limit = AbortSignal.timeout(ms)
  // A signal that somebody listens to is kept.
  limit.addEventListener('abort', () => {}, { once: true })
  return limit
}
