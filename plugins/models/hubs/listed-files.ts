import { createHash } from 'node:crypto'
import type { FileLocation, HubFile, HubMatch } from '../../../core/contracts/hubs.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { isLoopback } from '../../../core/system/private-address.ts'
import { type Headers, type HubResponse, LOCATE_RETRY_MS, type OutgoingRequest, USER_AGENT } from './hub-fetch.ts'

export const encodePath = (path: string): string => path.split('/').map(encodeURIComponent).join('/')

/** Maximum files of a repository in which corral looks for a model. */
const MAX_FILES = 100_000

export function requireFewFiles(count: number, title: string, id: string): void {
  if (count <= MAX_FILES) return
  throw new CorralError(
    'unsupported_capability',
    `"${id}" has more than ${MAX_FILES.toLocaleString('en')} files at ${title}, too many to look for a model among them. Choose another repository.`,
    { param: 'model' }
  )
}

/** A hub's statement about a file that cannot be right. */
class InvalidFact extends Error {
  constructor(what: string, value: unknown, file: string) {
    const shown = printable(JSON.stringify(value) ?? String(value), 80)
    super(`says that the ${what} of ${JSON.stringify(printable(file, 200))} is ${shown}`)
  }
}

/** Reads a hub's statements. @throws CorralError `hub_unreachable` if one cannot be right */
export async function readFacts<Facts>(title: string, read: () => Facts | Promise<Facts>): Promise<Facts> {
  try {
    return await read()
  } catch (error) {
    if (!(error instanceof InvalidFact)) throw error
    throw new CorralError(
      'hub_unreachable',
      `${title} ${error.message}, which cannot be right. Nothing was downloaded, because it could not be verified. Try again later, or use another hub.`
    )
  }
}

/** Reads a file's size from a listing; undefined if absent. @throws InvalidFact */
export function readSize(value: unknown, file: string): number | undefined {
  if (value === undefined || value === null) return undefined
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number
  throw new InvalidFact('size', value, file)
}

export function hubFile(path: string, size: number | undefined, sha256?: string, gitSha1?: string): HubFile {
  return { path, size, ...(sha256 ? { sha256 } : {}), ...(gitSha1 ? { gitSha1 } : {}) }
}

/** Identifies a listing's content, regardless of its order, for hubs without commits. */
export function fingerprint(files: readonly HubFile[]): string {
  const lines = files.map(({ path, size, sha256, gitSha1 }) => JSON.stringify([path, size, sha256 ?? gitSha1])).sort()
  return `listing-${createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 40)}`
}

export const isFingerprint = (revision: string): boolean => revision.startsWith('listing-')

/** Parses an ETag, with or without quotes. */
export function parseEtag(header: string | undefined): { value: string; weak: boolean } | undefined {
  const match = /^\s*(W\/)?(?:"([^"]*)"|([^\s"]+))\s*$/.exec(header ?? '')
  const value = match?.[2] ?? match?.[3]
  return value ? { value, weak: match?.[1] !== undefined } : undefined
}

/** Returns a strong ETag with its quotes. Undefined if it is weak or missing. */
export function strongEtag(header: string | undefined): string | undefined {
  const tag = parseEtag(header)
  return tag && !tag.weak ? `"${tag.value}"` : undefined
}

/** Normalizes a SHA-256 (`sha256:…`, quoted, upper case) to 64 hex digits in lower case. */
export function sha256Hex(value: unknown): string | undefined {
  if (typeof value !== 'string') return undefined
  const hex = (parseEtag(value)?.value ?? '').replace(/^sha-?256[:-]/i, '')
  return /^[0-9a-f]{64}$/i.test(hex) ? hex.toLowerCase() : undefined
}

/** Reads a file's SHA-256 from a listing; undefined if absent. @throws InvalidFact */
export function readSha256(value: unknown, file: string): string | undefined {
  if (value === undefined || value === null) return undefined
  const hex = sha256Hex(value)
  if (hex === undefined) throw new InvalidFact('SHA-256', value, file)
  return hex
}

export const sha1Hex = (value: unknown): string | undefined =>
  typeof value === 'string' && /^[0-9a-f]{40}$/i.test(value) ? value.toLowerCase() : undefined

function hexFromBase64(text: string | undefined): string | undefined {
  if (!text || !/^[A-Za-z0-9+/]{43}=$/.test(text)) return undefined
  return Buffer.from(text, 'base64').toString('hex')
}

/** Returns the SHA-256 of a whole file from response headers, in any of the common forms. */
export function sha256FromHeaders(headers: Headers): string | undefined {
  return (
    sha256Hex(headers['x-linked-etag']) ??
    hexFromBase64(/(?:^|,)\s*sha-256=:([^:]+):/i.exec(headers['repr-digest'] ?? '')?.[1]) ??
    hexFromBase64(/(?:^|,)\s*sha-256=([^,\s]+)/i.exec(headers.digest ?? '')?.[1]) ??
    // For a multipart upload this is a digest of digests with a suffix, which does not match here.
    hexFromBase64(headers['x-amz-checksum-sha256'])
  )
}

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
  if (linkedSize && !/^\d{1,15}$/.test(linkedSize)) throw new InvalidFact('size', linkedSize, file)
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
const linkedSha256 = (etag: string | undefined, file: string): string | undefined =>
  sha1Hex(parseEtag(etag)?.value) ? undefined : readSha256(etag, file)

/** Returns the proxy for an address: none for this machine, which a proxy cannot reach. */
export const proxyForUrl = (url: string, proxy: string): Pick<FileLocation, 'proxy'> =>
  proxy || isLoopback(new URL(url).hostname) ? { proxy } : {}

export function locationHeaders(credentials: Headers | undefined): Headers {
  return { 'user-agent': USER_AGENT, 'accept-encoding': 'identity', ...credentials }
}

/** Uses HEAD if the hub redirects it. Otherwise requests the first byte, because some servers redirect only GET. */
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

const toKeyword = (value: unknown) => (typeof value === 'string' && /^[\w.+:/-]{1,80}$/.test(value) ? value : undefined)

const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])

const toCount = (value: unknown) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : undefined

/** Returns a time in ISO 8601, or undefined if it is not one. */
export function toTimestamp(value: unknown): string | undefined {
  if (typeof value !== 'string' || value.length > 40 || !/^\d{4}-\d\d-\d\d/.test(value)) return undefined
  const time = Date.parse(value)
  return Number.isNaN(time) ? undefined : new Date(time).toISOString()
}

const FORMATS = ['gguf', 'safetensors'] as const
type Format = (typeof FORMATS)[number]

/** Searches for GGUF files first. Models that must be converted are shown only if nothing else is found. */
export async function searchFormats(title: string, id: string, limit: number, look: (format: Format) => unknown) {
  for (const format of FORMATS) {
    const found = await look(format)
    if (!Array.isArray(found)) {
      throw new CorralError('hub_unreachable', `${title} returned an invalid answer to a search.`)
    }
    const matches = found.flatMap(record => toMatch(record, id) ?? []).slice(0, limit)
    if (matches.length > 0) return matches
  }
  return []
}

/** Converts a search record to a match. Undefined if it has no name. @param id field with the name */
function toMatch(record: unknown, id: string): HubMatch | undefined {
  if (!isObject(record) || typeof record[id] !== 'string') return undefined
  const name = record[id]
  // Hubs write tags as strings or as objects with a name.
  const tags = list(record.tags).flatMap(tag => toKeyword(isObject(tag) ? tag.name : tag) ?? [])
  const tagged = (kind: string) => tags.find(tag => tag.startsWith(`${kind}:`))?.slice(kind.length + 1)
  const given = Array.isArray(record.tasks) ? record.tasks : [record.pipeline_tag ?? tagged('task')]
  const hasFormat = (format: string) =>
    tags.some(tag => tag.toLowerCase().replace(/^(?:library|framework):/, '') === format) ||
    (format === 'gguf' && /gguf/i.test(name))
  return {
    id: name,
    downloads: toCount(record.downloads),
    likes: toCount(record.likes),
    updatedAt: toTimestamp(record.lastModified ?? record.last_modified ?? record.updated_at),
    license: toKeyword(record.license) ?? tagged('license'),
    tasks: given.flatMap(task => toKeyword(task) ?? []).slice(0, 10),
    gated: typeof record.gated === 'string' ? record.gated !== 'false' : record.gated === true,
    formats: FORMATS.filter(hasFormat)
  }
}
