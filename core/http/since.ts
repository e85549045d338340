import { CorralError } from '../errors.ts'
import { parseMoment } from '../system/duration.ts'

/**
 * Parses the parameter `since`: `1h`, `7d`, `2w`, a date (UTC) or a time.
 * @returns milliseconds since the epoch, not after `now`
 * @throws CorralError `invalid_request`
 */
export function parseSince(text: string, now: number): number {
  const moment = parseMoment(text, now, 'past')
  if (moment !== undefined && moment <= now) return moment
  throw new CorralError(
    'invalid_request',
    `"since" cannot be ${JSON.stringify(text.slice(0, 40))}: it must be a duration, or a date or time in the past. Write 1h, 7d, 2w, a date such as 2025-12-31 or a time such as 2025-12-31T12:00:00Z.`,
    { param: 'since' }
  )
}
