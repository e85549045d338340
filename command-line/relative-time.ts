const UNITS = [
  ['year', 365 * 86_400],
  ['month', 30 * 86_400],
  ['week', 7 * 86_400],
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
  ['second', 1]
] as const

/** `/api/ps` shows "for ever" as the year 2999. */
const FOR_EVER_YEAR = 2999

/** A moment as people say it: `3 minutes ago`, `in 4 minutes`, `now`, `for ever`. Takes ISO 8601. */
export function relativeTime(moment: string, now: Date): string {
  const date = new Date(moment)
  if (Number.isNaN(date.getTime())) return moment
  if (date.getUTCFullYear() >= FOR_EVER_YEAR) return 'for ever'
  const seconds = Math.round((date.getTime() - now.getTime()) / 1000)
  const unit = UNITS.find(([, length]) => Math.abs(seconds) >= length)
  if (!unit) return 'now'
  const count = Math.floor(Math.abs(seconds) / unit[1])
  const text = `${count} ${unit[0]}${count === 1 ? '' : 's'}`
  return seconds < 0 ? `${text} ago` : `in ${text}`
}
