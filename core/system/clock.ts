/** Milliseconds that the system's clock may differ from the monotonic one before it counts as having been set. */
const TOLERANCE = 1000

let epoch = performance.timeOrigin

/**
 * The date of a moment of `performance.now()`. Durations and deadlines are measured with that clock, since the system's
 * clock may be set while corral runs. Dates of the same moment are equal as long as the system's clock is not set.
 */
export const dateAt = (moment: number) => new Date(currentEpoch() + moment)

/** The moment of `performance.now()` at which it is this date (text in ISO 8601). */
export const momentAt = (date: string) => Date.parse(date) - currentEpoch()

function currentEpoch(): number {
  const found = Date.now() - performance.now()
  if (Math.abs(found - epoch) > TOLERANCE) epoch = found
  return epoch
}
