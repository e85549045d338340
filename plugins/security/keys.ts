import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

/**
 * Tells whether a request carries one of these keys, as `Authorization: Bearer <key>` or `x-api-key: <key>`. How long
 * that takes says nothing about the keys.
 */
export function keyCheck(keys: readonly string[]): (headers: IncomingHttpHeaders) => boolean {
  const digests = keys.map(digest)
  const known = (key: string) => {
    const given = digest(key)
    let found = false
    for (const wanted of digests) found = timingSafeEqual(given, wanted) || found
    return found
  }
  return headers => {
    const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
    const header = headers['x-api-key']
    const given = [bearer, Array.isArray(header) ? header[0] : header].filter(key => key !== undefined)
    return given.some(known)
  }
}
