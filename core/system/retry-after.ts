/** Seconds that a server asks clients to wait, rounded up. Names of headers are in lower case. */
export function retryAfterSeconds(headers: Record<string, string | undefined>, now: number): number | undefined {
  // The header of the draft standard, as Hugging Face sends it: `"api";r=0;t=55`. Only exhausted limits (r=0) matter.
  const waits = (headers.ratelimit ?? '')
    .split(',')
    .filter(policy => /;\s*r=0\s*(;|$)/.test(policy))
    .map(policy => Number(/;\s*t=(\d+)/.exec(policy)?.[1] ?? Number.NaN))
    .filter(Number.isFinite)
  if (waits.length > 0) return Math.max(...waits) + 1
  const after = headers['retry-after']?.trim()
  if (after && /^\d+(\.\d+)?$/.test(after)) return Math.ceil(Number(after))
  const date = after ? Date.parse(after) : Number.NaN
  if (Number.isFinite(date)) return Math.max(0, Math.ceil((date - now) / 1000))
  const reset = Number(headers['x-ratelimit-reset'] ?? Number.NaN)
  return reset > now / 1000 ? Math.ceil(reset - now / 1000) : undefined
}
