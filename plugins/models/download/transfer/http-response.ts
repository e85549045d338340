import { printable } from '../../../../core/system/printable.ts'
import { isRedirect } from '../../../../core/system/redirects.ts'

export interface ResponseHead {
  status: number
  /** By name in lower case. Repeated headers are joined by commas. */
  headers: Record<string, string | undefined>
  keepAlive: boolean
  body: { kind: 'length'; length: number } | { kind: 'chunked' } | { kind: 'until-close' }
}

export class InvalidResponse extends Error {
  override readonly name = 'InvalidResponse'
}

export const MAX_HEAD_BYTES = 64 * 1024

/** Parses the head of a response. @throws InvalidResponse if it is not HTTP/1.x, or has contradictory lengths */
export function parseHead(text: string): ResponseHead {
  const lines = text.split('\r\n')
  const first = /^HTTP\/1\.([01]) (\d{3})(?: |$)/.exec(lines[0]!)
  if (!first) throw new InvalidResponse('the response is not HTTP/1.1')
  const status = Number(first[2])
  const headers = new Map<string, string>()
  for (const line of lines.slice(1)) {
    const parts = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*$/.exec(line)
    if (!parts) throw new InvalidResponse('the response has an invalid header line')
    const name = parts[1]!.toLowerCase()
    const before = headers.get(name)
    headers.set(name, before === undefined ? parts[2]! : `${before}, ${parts[2]!}`)
  }
  const connection = (headers.get('connection') ?? '').toLowerCase()
  const canStay = first[1] === '1' ? !/\bclose\b/.test(connection) : /\bkeep-alive\b/.test(connection)
  const body = bodyFraming(status, headers)
  return { status, headers: Object.fromEntries(headers), keepAlive: canStay && body.kind !== 'until-close', body }
}

function bodyFraming(status: number, headers: ReadonlyMap<string, string>): ResponseHead['body'] {
  if (status < 200 || status === 204 || status === 304) return { kind: 'length', length: 0 }
  const encoding = headers.get('transfer-encoding')
  const length = headers.get('content-length')
  if (encoding !== undefined) {
    if (length !== undefined) throw new InvalidResponse('the response declares its length twice')
    if (encoding.toLowerCase() === 'chunked') return { kind: 'chunked' }
    throw new InvalidResponse(`the response uses the transfer encoding "${encoding}"`)
  }
  if (length === undefined) return { kind: 'until-close' }
  const [only, ...others] = new Set(length.split(/\s*,\s*/))
  if (others.length > 0 || !/^\d{1,15}$/.test(only!)) throw new InvalidResponse('the response has an invalid length')
  return { kind: 'length', length: Number(only) }
}

/** @returns `size`: undefined if the server does not know it */
function parseContentRange(value: string | undefined) {
  const parts = /^bytes\s+(\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/i.exec(value?.trim() ?? '')
  if (!parts) return undefined
  const [first, last] = [Number(parts[1]), Number(parts[2])]
  const size = parts[3] === '*' ? undefined : Number(parts[3])
  return last < first || last >= (size ?? Number.POSITIVE_INFINITY) ? undefined : { first, last, size }
}

export type Answer =
  /** The bytes from `start` up to `end` (exclusive) follow. */
  | { kind: 'range'; end: number; size: number | undefined }
  /** The whole file follows: the server does not support ranges. */
  | { kind: 'whole'; size: number | undefined }
  /** The whole file would follow although only a later part was requested. */
  | { kind: 'rangeless' }
  | { kind: 'redirect'; to: string | undefined }
  | { kind: 'empty' }
  | { kind: 'size'; size: number }
  /** Not allowed, or deleted. Another location may help. */
  | { kind: 'refused' }
  | { kind: 'busy' }
  /** Anything else. Another attempt may help unless `isLasting`. */
  | { kind: 'unusable'; why: string; isLasting?: boolean }

/** @param end end of the requested range (exclusive); undefined for an open range */
export function readResponse(
  { status, headers, body }: ResponseHead,
  start: number,
  end: number | undefined,
  size: number | undefined
): Answer {
  if (isRedirect(status)) return { kind: 'redirect', to: headers.location }
  if (status === 429 || status === 503) return { kind: 'busy' }
  if ([400, 401, 403, 404, 410, 451].includes(status)) return { kind: 'refused' }
  if (status === 416) {
    const total = /^bytes\s+\*\/(\d{1,15})$/i.exec(headers['content-range'] ?? '')?.[1]
    if (total === '0' && size === undefined) return { kind: 'empty' }
    if (total !== undefined && Number(total) !== size) return { kind: 'size', size: Number(total) }
  }
  if (status !== 200 && status !== 206) return { kind: 'unusable', why: `answers ${status}` }

  const encoding = headers['content-encoding']?.toLowerCase() ?? 'identity'
  if (encoding !== 'identity') {
    const why = `sends it compressed (${printable(encoding, 20)}), although the plain bytes were requested`
    return { kind: 'unusable', why, isLasting: true }
  }
  const length = body.kind === 'length' ? body.length : undefined
  // A file may also have this type, if it has the right size.
  const isPage = /\btext\/html\b/i.test(headers['content-type'] ?? '') && status === 200
  if (isPage && length !== size) return { kind: 'unusable', why: WEB_PAGE, isLasting: true }
  const range = parseContentRange(headers['content-range'])
  const total = range && range.last - range.first + 1
  // Some servers answer a range with 200. Accept it only if all its headers agree.
  if (range && (status === 206 || length === total)) {
    if ((range.size ?? size) === undefined) return { kind: 'unusable', why: SIZELESS }
    if (range.size !== undefined && size !== undefined && range.size !== size) return { kind: 'size', size: range.size }
    const fits = range.first === start && (end === undefined || range.last < end) && (length ?? total) === total
    if (!fits) return { kind: 'unusable', why: 'sends another part than the requested one' }
    return { kind: 'range', end: range.last + 1, size: range.size }
  }
  if (status === 206) return { kind: 'unusable', why: 'sends a part without saying which' }
  if ((length ?? size) === undefined) return { kind: 'unusable', why: SIZELESS }
  if (length !== undefined && size !== undefined && length !== size) return { kind: 'size', size: length }
  return start === 0 ? { kind: 'whole', size: length } : { kind: 'rangeless' }
}

export const WEB_PAGE = 'sends a web page instead of the file'
const SIZELESS = 'does not say how large the file is'
