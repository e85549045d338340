/** If the system's clock and the monotonic clock differ by more milliseconds than this, the system's clock was set. */
const TOLERANCE_MS = 1000

let epoch = performance.timeOrigin

/** The date of a time from `performance.now()`, by which durations are measured. */
export const dateAt = (moment: number) => new Date(currentEpoch() + moment)

/** The time of `performance.now()` at a date (text in ISO 8601). */
export const momentAt = (date: string) => Date.parse(date) - currentEpoch()

function currentEpoch(): number {
  const found = Date.now() - performance.now()
  if (Math.abs(found - epoch) > TOLERANCE_MS) epoch = found
  return epoch
}
