import { parseContentRange, type ResponseHead } from './http/response-head.ts'

/** What a server's answer to a request for bytes from `start` on means. */
export type Answer =
  /** The bytes from `start` to before `end` follow. */
  | { kind: 'range'; end: number; size: number | undefined }
  /** The whole file follows: the server does not do ranges. */
  | { kind: 'whole'; size: number | undefined }
  /** The whole file would follow where only its end is wanted. */
  | { kind: 'rangeless' }
  | { kind: 'redirect'; to: string | undefined }
  /** The file has no bytes. */
  | { kind: 'empty' }
  /** The file has another size than before. */
  | { kind: 'size'; size: number }
  /** Not allowed, or not there any longer: another location may help. */
  | { kind: 'refused' }
  /** Too many requests, or too many for now. */
  | { kind: 'busy' }
  /** Anything else; another try may help. */
  | { kind: 'unusable'; why: string }

/**
 * Reads a response's head.
 * @param end where the request ended (exclusive); undefined when it had no end
 * @param size the file's, as far as it is known
 */
export function readAnswer(
  head: ResponseHead,
  start: number,
  end: number | undefined,
  size: number | undefined
): Answer {
  const { status, headers } = head
  const encoding = headers.get('content-encoding')?.toLowerCase()
  if (status === 200 || status === 206) {
    if (encoding !== undefined && encoding !== 'identity') return { kind: 'unusable', why: `sends it as ${encoding}` }
    const length = head.body.kind === 'length' ? head.body.length : undefined
    const range = parseContentRange(headers.get('content-range'))
    // Some servers answer a range with 200; it is one only when all that they say fits together.
    if (range && (status === 206 || length === range.last - range.first + 1)) {
      return readRange(range, length, start, end, size)
    }
    if (status === 206) return { kind: 'unusable', why: 'sends a part without saying which' }
    if (length !== undefined && size !== undefined && length !== size) return { kind: 'size', size: length }
    return start === 0 ? { kind: 'whole', size: length } : { kind: 'rangeless' }
  }
  if ([301, 302, 303, 307, 308].includes(status)) return { kind: 'redirect', to: headers.get('location') }
  if (status === 416) {
    const total = /^bytes\s+\*\/(\d{1,15})$/i.exec(headers.get('content-range') ?? '')?.[1]
    if (total === '0' && size === undefined) return { kind: 'empty' }
    if (total !== undefined && Number(total) !== size) return { kind: 'size', size: Number(total) }
  }
  if (status === 429 || status === 503) return { kind: 'busy' }
  if ([400, 401, 403, 404, 410].includes(status)) return { kind: 'refused' }
  return { kind: 'unusable', why: `answers ${status}` }
}

function readRange(
  range: { first: number; last: number; size: number | undefined },
  length: number | undefined,
  start: number,
  end: number | undefined,
  size: number | undefined
): Answer {
  if (range.size !== undefined && size !== undefined && range.size !== size) return { kind: 'size', size: range.size }
  const fits = range.first === start && (end === undefined || range.last < end)
  if (!fits || (length !== undefined && length !== range.last - range.first + 1)) {
    return { kind: 'unusable', why: 'sends another part than the one asked for' }
  }
  return { kind: 'range', end: range.last + 1, size: range.size }
}
