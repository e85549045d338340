/** A span of a distributed trace, from the header `traceparent` of W3C Trace Context. */
export interface TraceParent {
  /** 32 hex digits in lower case. */
  readonly traceId: string
  /** 16 hex digits in lower case. */
  readonly spanId: string
  /** Whether the caller records the trace. */
  readonly sampled: boolean
}

const FORMAT = /^([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

/** Parses a `traceparent`. Returns undefined if it is absent or invalid, since both are treated alike. */
export function parseTraceParent(header: unknown): TraceParent | undefined {
  if (typeof header !== 'string' || header.length > 512) return undefined
  const [, version, traceId, spanId, flags, more] = FORMAT.exec(header) ?? []
  // Later versions may add fields. Version 00 has no other fields.
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return undefined
  return { traceId: traceId!, spanId: spanId!, sampled: (Number.parseInt(flags!, 16) & 1) === 1 }
}

export function formatTraceParent({ traceId, spanId, sampled }: TraceParent): string {
  return `00-${traceId}-${spanId}-${sampled ? '01' : '00'}`
}
