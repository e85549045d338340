import type { Framing } from '../../core/contracts/native-api.ts'

interface FramingRequest {
  accept: string | undefined
  /** The header `X-Stream-Format`. */
  override: string | undefined
  /** What the mount point gives to those who do not say. */
  fallback: Framing
  /** Whether `Accept` is heeded at all. */
  negotiate: boolean
}

function acceptedTypes(accept: string): Map<string, number> {
  const types = new Map<string, number>()
  for (const part of accept.toLowerCase().split(',')) {
    const [type = '', ...parameters] = part.split(';').map(piece => piece.trim())
    if (!type) continue
    const quality = parameters.find(parameter => parameter.startsWith('q='))
    const value = quality === undefined ? 1 : Number(quality.slice(2))
    types.set(type, Number.isNaN(value) ? 1 : value)
  }
  return types
}

/**
 * The framing of a stream, by ordinary `Accept` negotiation (never 406). On `/api` it is SSE unless the client rules
 * that out or names NDJSON; where NDJSON is the default it is NDJSON unless the client names `text/event-stream`.
 */
export function chooseFraming({ accept, override, fallback, negotiate }: FramingRequest): Framing {
  const asked = override?.trim().toLowerCase()
  if (asked === 'sse' || asked === 'ndjson') return asked
  if (!negotiate || accept === undefined || accept.trim() === '') return fallback
  const types = acceptedTypes(accept)
  const sse = types.get('text/event-stream')
  const ndjson = types.get('application/x-ndjson')
  if (sse !== undefined || ndjson !== undefined) {
    if ((sse ?? 0) > 0 || (ndjson ?? 0) > 0) return (ndjson ?? 0) > (sse ?? 0) ? 'ndjson' : 'sse'
  }
  if (fallback === 'ndjson') return 'ndjson'
  const wildcard = types.get('text/*') ?? types.get('*/*') ?? 0
  return sse === undefined && wildcard > 0 ? 'sse' : 'ndjson'
}

export type StreamType = 'text/event-stream' | 'application/x-ndjson'

/** How each framing looks on the wire. */
export const FRAMES: Record<Framing, { contentType: StreamType; event: (value: unknown) => string }> = {
  sse: { contentType: 'text/event-stream', event: value => `data: ${JSON.stringify(value)}\n\n` },
  ndjson: { contentType: 'application/x-ndjson', event: value => `${JSON.stringify(value)}\n` }
}
