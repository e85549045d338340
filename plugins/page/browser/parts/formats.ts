import { shownLanguage } from '../texts/texts.ts'

/** Cached by language and options, since creating a format is slower than using it. */
const formats = new Map<string, Intl.NumberFormat>()

function format(value: number, options: Intl.NumberFormatOptions): string {
  const key = shownLanguage.value + JSON.stringify(options)
  const format = formats.get(key) ?? new Intl.NumberFormat(shownLanguage.value, options)
  formats.set(key, format)
  return format.format(value)
}

/** Formats a size, such as 1.2 GB. */
export function formatSize(bytes: number): string {
  const units = ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte']
  const step = bytes < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3))
  const value = bytes / 1000 ** step
  return format(value, {
    style: 'unit',
    unit: units[step]!,
    unitDisplay: 'short',
    maximumFractionDigits: value < 10 && step > 0 ? 1 : 0
  })
}

export function formatNumber(value: number, digits = 0): string {
  return format(value, { maximumFractionDigits: digits })
}

/** Formats a duration, such as 0.3 s or 4 min. @param ms milliseconds */
export function formatDuration(ms: number): string {
  const seconds = ms / 1000
  const [value, unit] =
    seconds < 90 ? [seconds, 'second'] : seconds < 5400 ? [seconds / 60, 'minute'] : [seconds / 3600, 'hour']
  return format(value as number, {
    style: 'unit',
    unit: unit as string,
    unitDisplay: 'short',
    maximumFractionDigits: seconds < 10 ? 1 : 0
  })
}

/**
 * Formats how long ago something was, such as yesterday, or returns an empty text if unknown. @param at epoch
 * milliseconds
 */
export function formatAgo(at: number): string {
  if (!Number.isFinite(at)) return ''
  const seconds = (at - Date.now()) / 1000
  const format = new Intl.RelativeTimeFormat(shownLanguage.value, { numeric: 'auto' })
  const size = Math.abs(seconds)
  if (size < 3600) return format.format(Math.round(seconds / 60), 'minute')
  if (size < 86_400) return format.format(Math.round(seconds / 3600), 'hour')
  if (size < 30 * 86_400) return format.format(Math.round(seconds / 86_400), 'day')
  return format.format(Math.round(seconds / (30 * 86_400)), 'month')
}
