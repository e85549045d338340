/** Milliseconds of the first delay at most, before it doubles. */
export const FIRST_DELAY = 500
const LONGEST_DELAY = 30_000
/** Longest that a server's own wish is followed. */
const LONGEST_WISH = 15 * 60_000

/** Milliseconds before the next try after so many failures in a row; any length up to the limit is as likely. */
export function backOff(failures: number, first: number, random: () => number = Math.random): number {
  return random() * Math.min(LONGEST_DELAY, first * 2 ** Math.min(failures, 16))
}

/**
 * Milliseconds that a server wants to be left alone, from `RateLimit` (`"api";r=0;t=55`, one second added) or
 * `Retry-After` (seconds or a date). Undefined where it says nothing.
 */
export function wishedDelay(headers: ReadonlyMap<string, string>, now: number): number | undefined {
  const limit = headers.get('ratelimit')
  const remaining = limit === undefined ? undefined : /;\s*r=(\d+)/.exec(limit)?.[1]
  const reset = limit === undefined ? undefined : /;\s*t=(\d+)/.exec(limit)?.[1]
  if (remaining !== undefined && reset !== undefined && Number(remaining) === 0) {
    return Math.min(LONGEST_WISH, (Number(reset) + 1) * 1000)
  }
  const value = headers.get('retry-after')
  if (value === undefined) return undefined
  if (/^\d+(\.\d+)?$/.test(value)) return Math.min(LONGEST_WISH, Number(value) * 1000)
  const date = Date.parse(value)
  return Number.isNaN(date) ? undefined : Math.min(LONGEST_WISH, Math.max(0, date - now))
}
