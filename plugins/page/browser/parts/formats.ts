import { fill, shownLanguage, texts } from '../texts/texts.ts'

/** Cached by language and options, since creating a format is slower than using it. */
const formats = new Map<string, Intl.NumberFormat>()

/** Formats a number, in a unit if one is given. @param digits maximum digits after the decimal point */
export function formatNumber(value: number, digits = 0, unit?: string): string {
  const options: Intl.NumberFormatOptions = {
    maximumFractionDigits: digits,
    ...(unit && { style: 'unit', unit, unitDisplay: 'short' })
  }
  const key = shownLanguage.value + JSON.stringify(options)
  const format = formats.get(key) ?? new Intl.NumberFormat(shownLanguage.value, options)
  formats.set(key, format)
  return format.format(value)
}

/** Formats a size, such as 1.2 GB. */
export function formatSize(bytes: number): string {
  if (bytes < 1000) return `${formatNumber(bytes)} B`
  const units = ['kilobyte', 'megabyte', 'gigabyte', 'terabyte']
  const step = Math.min(4, Math.floor(Math.log10(bytes) / 3))
  const value = bytes / 1000 ** step
  return formatNumber(value, value < 10 ? 1 : 0, units[step - 1])
}

/** Formats a part of a whole in bytes, such as 1.2 GB of 4 GB. */
export const formatShare = (used: number, whole: number): string =>
  fill(texts.value.memoryOf, { used: formatSize(used), whole: formatSize(whole) })

/** Formats a duration, such as 0.3 s or 4 min. @param ms milliseconds */
export function formatDuration(ms: number): string {
  const seconds = ms / 1000
  if (seconds < 90) return formatNumber(seconds, seconds < 10 ? 1 : 0, 'second')
  return seconds < 5400 ? formatNumber(seconds / 60, 0, 'minute') : formatNumber(seconds / 3600, 0, 'hour')
}

/** Units of relative times with their length in seconds, longest first. */
const UNITS = [
  ['month', 30 * 86_400],
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60]
] as const

/** Formats how long ago something was, such as yesterday. @param at epoch milliseconds; an empty text if unknown */
export function formatAgo(at: number): string {
  if (!Number.isFinite(at)) return ''
  const seconds = (at - Date.now()) / 1000
  const [unit, length] = UNITS.find(([, length]) => Math.abs(seconds) >= length) ?? UNITS.at(-1)!
  return new Intl.RelativeTimeFormat(shownLanguage.value, { numeric: 'auto' }).format(
    Math.round(seconds / length),
    unit
  )
}
