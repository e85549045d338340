/** How much had been moved at a moment (epoch milliseconds). */
export interface Sample {
  at: number
  moved: number
}

/** What the speed is taken over: long enough to be calm, short enough to tell of a line that got slow (milliseconds). */
export const SPEED_WINDOW = 10_000
/** What is seen in less time says nothing. */
const SHORTEST = 1000

/**
 * Units a second over the last ten seconds before `now`; undefined while too little was seen.
 * @param samples in order of time; the first is where the counting began
 */
export function speedOf(samples: readonly Sample[], now: number): number | undefined {
  const begin = now - SPEED_WINDOW
  const from = samples.findLast(({ at }) => at <= begin) ?? samples[0]
  if (!from) return undefined
  const elapsed = now - Math.max(from.at, begin)
  return elapsed < SHORTEST ? undefined : ((samples.at(-1)!.moved - from.moved) / elapsed) * 1000
}

/** Text such as `8 s`, `3 min 5 s`, `2 h 10 min` or `4 days`; undefined when nobody can tell. */
export function formatTimeLeft(remaining: number, speed: number | undefined): string | undefined {
  if (!speed) return undefined
  const seconds = Math.ceil(remaining / speed)
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${Math.round(seconds / 86_400)} days`
}
