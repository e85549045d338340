/** Which bytes of a file a request gets. */
export type RangeAnswer =
  | { status: 200 }
  /** Both positions are part of the range. */
  | { status: 206; start: number; end: number }
  | { status: 416 }

/**
 * What a `Range` header asks of a file (RFC 9110, 14.2). Several ranges at once, other units and what cannot be read
 * get the whole file, as does a client whose `If-Range` names another content.
 * @param size bytes of the file
 * @param etag the file's strong entity tag, in quotes
 */
export function byteRange(
  headers: { range?: string | undefined; 'if-range'?: string | undefined },
  size: number,
  etag: string
): RangeAnswer {
  const { range, 'if-range': ifRange } = headers
  if (range === undefined || (ifRange !== undefined && ifRange.trim() !== etag)) return { status: 200 }
  const match = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i.exec(range.trim())
  const [, first, last] = match ?? []
  if (!match || (!first && !last)) return { status: 200 }
  // Only the last bytes are asked for.
  if (!first) {
    const length = Math.min(Number(last), size)
    return length === 0 ? { status: 416 } : { status: 206, start: size - length, end: size - 1 }
  }
  const start = Number(first)
  if (last && Number(last) < start) return { status: 200 }
  if (start >= size) return { status: 416 }
  return { status: 206, start, end: last ? Math.min(Number(last), size - 1) : size - 1 }
}

/** Whether an `If-None-Match` header names this content, so that it need not be sent again. */
export function isKnown(ifNoneMatch: string | undefined, etag: string): boolean {
  if (ifNoneMatch === undefined) return false
  return ifNoneMatch.trim() === '*' || ifNoneMatch.split(',').some(tag => tag.trim().replace(/^W\//, '') === etag)
}
