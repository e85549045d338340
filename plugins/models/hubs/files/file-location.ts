import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { isLoopback } from '../../../../core/system/private-address.ts'
import { type HubResponse, LOCATE_RETRY_MS, type OutgoingRequest, USER_AGENT } from '../http/hub-fetch.ts'
import { invalidFact, parseEtag, readSha256, readSize, sha1Hex, strongEtag } from './listed-files.ts'

type Headers = Record<string, string>

/** Returns the file's size from the response to a request for it or its first byte. Undefined if unknown. */
function sizeFromResponse({ status, headers }: Pick<HubResponse, 'status' | 'headers'>, file: string) {
  const total = /^bytes\s+[\d*-]+\/(\d+)$/i.exec(headers['content-range'] ?? '')?.[1]
  if (total !== undefined) return readSize(Number(total), file)
  const length = headers['content-length'] ?? ''
  return status === 200 && !headers['content-encoding'] && /^\d+$/.test(length)
    ? readSize(Number(length), file)
    : undefined
}

/** Returns whether a response locates a file. An empty file has no first byte (416). */
export function isLocation(response: HubResponse): boolean {
  const { status, foreignLocation, headers } = response
  const empty = status === 416 && /^bytes\s+\*\/0$/i.test(headers['content-range'] ?? '')
  return foreignLocation !== undefined || (status >= 200 && status < 300) || empty
}

/**
 * Reads a file's location from the response to a request for it. A redirect states its target's size and digest in
 * `X-Linked-…` headers: Content-Length is the redirect's own, and the target's ETag may look like a SHA-256 without
 * being one.
 * @param file its path, for errors
 * @throws InvalidFact
 */
export function readLocation(response: HubResponse, proxy: string, file: string): FileLocation {
  const { foreignLocation, headers, credentials } = response
  const url = foreignLocation ?? response.url
  const linked = (name: string) => response.hops.find(hop => hop[name])?.[name]
  const linkedSize = linked('x-linked-size')
  if (linkedSize && !/^\d{1,15}$/.test(linkedSize)) throw invalidFact('size', linkedSize, file)
  const ownSize = foreignLocation ? undefined : sizeFromResponse(response, file)
  return {
    url,
    headers: locationHeaders(foreignLocation ? undefined : credentials),
    ...proxyForUrl(url, proxy),
    size: linkedSize === undefined ? ownSize : Number(linkedSize),
    sha256: linkedSha256(linked('x-linked-etag'), file),
    identity: foreignLocation ? undefined : strongEtag(headers.etag)
  }
}

/** For files in git itself, hubs send git's SHA-1. */
function linkedSha256(etag: string | undefined, file: string): string | undefined {
  return sha1Hex(parseEtag(etag)?.value) ? undefined : readSha256(etag, file)
}

/** Returns the proxy for an address: none for this machine, which a proxy cannot reach. */
export function proxyForUrl(url: string, proxy: string): Pick<FileLocation, 'proxy'> {
  return proxy || isLoopback(new URL(url).hostname) ? { proxy } : {}
}

/** Headers of each request for bytes. */
export function locationHeaders(credentials: Headers | undefined): Headers {
  return { 'user-agent': USER_AGENT, 'accept-encoding': 'identity', ...credentials }
}

/** Uses HEAD if the hub redirects that, otherwise requests the first byte: some servers only redirect those. */
export async function requestLocation(
  send: (outgoing: Partial<OutgoingRequest>) => Promise<HubResponse>,
  foreign: 'stop' | 'follow',
  withHead: boolean
): Promise<HubResponse> {
  const common = { foreign, headersOnly: true, retryTime: LOCATE_RETRY_MS } as const
  // If HEAD is refused with another status, request the first byte.
  const head = withHead ? await send({ ...common, method: 'HEAD', isFinal: ({ status }) => status !== 429 }) : undefined
  if (head && (head.status === 429 || (isLocation(head) && head.hops.length > 1) || head.foreignLocation)) return head
  const response = await send({ ...common, headers: { range: 'bytes=0-0' } })
  return head && isLocation(head) ? { ...response, hops: [...head.hops, ...response.hops] } : response
}
