/** @throws Error for an unknown time zone */
export function currentTime({ timezone }: { timezone?: string }, _call?: unknown, now = new Date()): string {
  const zone = timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone
  const format = (options: Intl.DateTimeFormatOptions) =>
    new Intl.DateTimeFormat('sv-SE', { timeZone: zone, ...options })
  let parts: Intl.DateTimeFormatPart[]
  try {
    parts = format({ dateStyle: 'short', timeStyle: 'medium' }).formatToParts(now)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw new Error(`${JSON.stringify(zone.slice(0, 60))} is not a time zone. Use a name such as Europe/Berlin or UTC`)
  }
  const local = parts.map(({ value }) => value).join('')
  const named = new Intl.DateTimeFormat('en', { timeZone: zone, weekday: 'long', timeZoneName: 'longOffset' })
  const { weekday, timeZoneName = '' } = Object.fromEntries(
    named.formatToParts(now).map(({ type, value }) => [type, value])
  )
  return `${local.replace(' ', 'T')}${timeZoneName.slice('GMT'.length) || 'Z'} (${weekday}, ${zone})`
}
