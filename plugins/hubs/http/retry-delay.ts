/** Values of response headers by lower-case names. */
export type Headers = Record<string, string>

const FIRST_DELAY = 400
const LONGEST_DELAY = 8_000

/** Whether the same question may well be answered a moment later. */
export function isPassing(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || (status >= 500 && status !== 501 && status !== 505)
}

/** Seconds after which a server that refuses wants to be asked again; undefined where it does not say. */
export function retryAfterSeconds(headers: Headers, now: number): number | undefined {
  // The draft standard's header, as Hugging Face sends it: `"api";r=0;t=55`. Only an exhausted limit explains a refusal.
  const waits = (headers.ratelimit ?? '')
    .split(',')
    .filter(policy => /;\s*r=0\s*(;|$)/.test(policy))
    .map(policy => Number(/;\s*t=(\d+)/.exec(policy)?.[1] ?? Number.NaN))
    .filter(Number.isFinite)
  if (waits.length > 0) return Math.max(...waits) + 1
  const after = headers['retry-after']?.trim()
  if (after && /^\d+(\.\d+)?$/.test(after)) return Math.ceil(Number(after))
  const date = after ? Date.parse(after) : Number.NaN
  if (Number.isFinite(date)) return Math.max(0, Math.ceil((date - now) / 1000))
  const reset = Number(headers['x-ratelimit-reset'] ?? Number.NaN)
  if (reset > now / 1000) return Math.ceil(reset - now / 1000)
  return undefined
}

/**
 * Milliseconds to wait before a question is asked again.
 * @param attempt 0 after the first failure
 * @param random 0 to 1
 */
export function retryDelay(attempt: number, headers: Headers | undefined, now: number, random: number): number {
  const asked = headers && retryAfterSeconds(headers, now)
  if (asked !== undefined) return asked * 1000
  const backOff = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** attempt)
  return backOff * (0.5 + random / 2)
}
