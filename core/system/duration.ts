const UNIT_MS: Record<string, number> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  μs: 1e-3,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000
}

/** Parses a Go duration (https://pkg.go.dev/time#ParseDuration) or a number of seconds to milliseconds. */
export function parseDuration(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? value * 1000 : undefined
  if (typeof value !== 'string') return undefined
  const text = value.trim()
  if (/^[-+]?\d+(\.\d+)?$/.test(text)) return Number(text) * 1000
  const match = /^([-+]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)$/.exec(text)
  if (!match) return undefined
  let total = 0
  for (const [, amount, unit] of match[2]!.matchAll(/(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)/g)) {
    total += Number(amount) * UNIT_MS[unit!]!
  }
  return match[1] === '-' ? -total : total
}

const DAY = 86_400_000
/** Later times have no ISO 8601 form with a year of four digits. */
const LAST_MOMENT = Date.UTC(9999, 0)

/**
 * Parses a time: a duration from now (`30m`, `1h30m`, `90d`, `2w`), or a date (UTC) or time in ISO 8601 (`2030-12-31`,
 * `2030-12-31T12:00:00Z`).
 * @param now milliseconds since the epoch
 * @param direction whether a duration leads to the past or the future
 * @returns milliseconds since the epoch, or undefined if it is neither
 */
export function parseMoment(text: string, now: number, direction: 'past' | 'future'): number | undefined {
  const [, count, unit] = /^(\d+)([dw])$/.exec(text) ?? []
  const isDate = /^\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d))?$/.test(text)
  let moment = Number.NaN
  if (isDate) moment = Date.parse(text)
  else {
    // A bare number would be seconds. Here it is more likely a mistake.
    const written = /^\d.*[a-z]$/.test(text) ? parseDuration(text) : undefined
    const length = unit === undefined ? (written ?? Number.NaN) : Number(count) * (unit === 'w' ? 7 * DAY : DAY)
    moment = direction === 'past' ? now - length : now + length
  }
  return moment >= 0 && moment < LAST_MOMENT ? moment : undefined
}

/** Formats a duration for people: `350 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min`. */
export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`
  const seconds = Math.round(ms / 1000)
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
}
