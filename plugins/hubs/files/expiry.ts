/** `20260102T030405Z` in epoch milliseconds. */
function compactDate(text: string): number {
  const match = /^(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})Z$/.exec(text)
  if (!match) return Number.NaN
  const [year, month, day, hour, minute, second] = match.slice(1).map(Number) as [number, ...number[]]
  return Date.UTC(year, month! - 1, day, hour, minute, second)
}

function moment(text: string): number {
  if (/^\d{9,11}$/.test(text)) return Number(text) * 1000
  if (/^\d{12,14}$/.test(text)) return Number(text)
  return compactDate(text) || Date.parse(text)
}

/**
 * When a signed address stops being valid, in epoch milliseconds: from the parameters of Amazon's, Google's, Aliyun's
 * and Azure's signatures. Undefined where it does not say, and where it would have expired already: then a clock is
 * wrong, this machine's or the server's.
 */
export function expiryOf(address: string, now: number): number | undefined {
  const query = new Map<string, string>()
  for (const [name, value] of new URL(address).searchParams) query.set(name.toLowerCase(), value)
  for (const vendor of ['x-amz', 'x-goog', 'x-oss']) {
    const signed = compactDate(query.get(`${vendor}-date`) ?? '')
    const seconds = Number(query.get(`${vendor}-expires`) || Number.NaN)
    if (Number.isFinite(signed) && Number.isFinite(seconds)) return later(signed + seconds * 1000, now)
  }
  return later(moment(query.get('expires') ?? query.get('se') ?? ''), now)
}

function later(time: number, now: number): number | undefined {
  return time > now ? time : undefined
}
