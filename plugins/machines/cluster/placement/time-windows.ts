const DAYS = ['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun']
const DAY_MINUTES = 24 * 60

/** Returns whether a time zone has this name in the IANA database. */
export function isTimeZone(name: string): boolean {
  try {
    return new Intl.DateTimeFormat('en', { timeZone: name }) !== undefined
  } catch {
    return false
  }
}

/**
 * Whether a time is in a weekly window such as `Mon-Fri 08:00-18:00`, `Sat,Sun 22:00-02:00` (until the next morning) or
 * `06:00-20:00` (every day). Clocks that are set forward or back count as they show.
 * @param timeZone its IANA name; the system's if undefined
 */
export function isInWindow(window: string, at: Date, timeZone?: string): boolean {
  const [times = '', days = 'Mon-Sun'] = window.split(' ').reverse()
  const [from = 0, to = 0] = times.split('-').map(time => Number(time.slice(0, 2)) * 60 + Number(time.slice(3)))
  const covered = new Set(days.split(',').flatMap(span => daysFrom(span.split('-'))))
  const parts = new Intl.DateTimeFormat('en', {
    ...{ timeZone, weekday: 'short', hour: '2-digit', minute: '2-digit', hourCycle: 'h23' }
  }).formatToParts(at)
  const part = (type: string) => parts.find(each => each.type === type)!.value
  const today = DAYS.indexOf(part('weekday'))
  const minute = (Number(part('hour')) * 60 + Number(part('minute'))) % DAY_MINUTES
  if (from < to) return covered.has(today) && minute >= from && minute < to
  return (covered.has(today) && minute >= from) || (covered.has((today + 6) % 7) && minute < to)
}

/** The days of a span such as Fri-Mon, as numbers. */
function daysFrom([first = '', last = first]: string[]): number[] {
  const [start, end] = [DAYS.indexOf(first), DAYS.indexOf(last)]
  return Array.from({ length: ((end - start + 7) % 7) + 1 }, (_, index) => (start + index) % 7)
}
