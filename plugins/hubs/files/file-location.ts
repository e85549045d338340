import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { isLoopback } from '../../../core/system/private-address.ts'
import { type HubAnswer, type HubQuestion, LOCATE_PATIENCE, USER_AGENT } from '../http/hub-fetch.ts'
import { sha256Hex, strongEtag } from './listed-files.ts'

type Headers = Record<string, string>

/** Bytes of the whole file, as an answer about it or its first byte says; undefined where it does not. */
export function sizeOfAnswer({ status, headers }: Pick<HubAnswer, 'status' | 'headers'>): number | undefined {
  const total = /^bytes\s+[\d*-]+\/(\d+)$/i.exec(headers['content-range'] ?? '')?.[1]
  if (total !== undefined) return Number(total)
  const length = headers['content-length'] ?? ''
  return status === 200 && !headers['content-encoding'] && /^\d+$/.test(length) ? Number(length) : undefined
}

/** Whether an answer says where a file is; an empty file has no first byte to ask for (416). */
export function isPlace(answer: HubAnswer): boolean {
  const { status, foreignPlace, headers } = answer
  const empty = status === 416 && /^bytes\s+\*\/0$/i.test(headers['content-range'] ?? '')
  return foreignPlace !== undefined || (status >= 200 && status < 300) || empty
}

/**
 * Where a file is, from the answer to a question about it. What a hub links to is named by its own headers
 * (`X-Linked-…`): the length of a redirect is its own, and the ETag of the place behind it is no SHA-256 although it may
 * look like one.
 */
export function locationOf(answer: HubAnswer, proxy: string, now: number): FileLocation {
  const url = answer.foreignPlace ?? answer.url
  const linked = (name: string) => answer.hops.find(hop => hop[name])?.[name]
  const linkedSize = linked('x-linked-size') ?? ''
  const size = /^\d+$/.test(linkedSize) ? Number(linkedSize) : answer.foreignPlace ? undefined : sizeOfAnswer(answer)
  const sha256 = sha256Hex(linked('x-linked-etag'))
  const identity = answer.foreignPlace ? undefined : strongEtag(answer.headers.etag)
  const expiresAt = expiryOf(url, now)
  return {
    url,
    headers: locationHeaders(answer.foreignPlace ? undefined : answer.credentials),
    ...proxyOf(url, proxy),
    ...(expiresAt === undefined ? {} : { expiresAt }),
    ...(size === undefined ? {} : { size }),
    ...(sha256 ? { sha256 } : {}),
    ...(identity ? { identity } : {})
  }
}

/** The proxy to a place: the hub's own; none to this machine, which a proxy of the network cannot reach. */
export function proxyOf(url: string, proxy: string): Pick<FileLocation, 'proxy'> {
  return proxy || isLoopback(new URL(url).hostname) ? { proxy } : {}
}

/** What goes with each request for bytes. */
export function locationHeaders(credentials: Headers | undefined): Headers {
  return { 'user-agent': USER_AGENT, 'accept-encoding': 'identity', ...credentials }
}

export type PlaceQuestion = Pick<HubQuestion, 'method' | 'headers' | 'foreign' | 'headersOnly' | 'patience' | 'isFinal'>

/**
 * Asks where a file is: its head, where that leads on; else its first byte, since some servers know no HEAD and others
 * only redirect what asks for bytes.
 */
export async function askPlace(
  ask: (question: PlaceQuestion) => Promise<HubAnswer>,
  foreign: 'stop' | 'follow',
  withHead: boolean
): Promise<HubAnswer> {
  const common = { foreign, headersOnly: true, patience: LOCATE_PATIENCE } as const
  // Whatever else a HEAD is refused with is settled by the question for the first byte.
  const head = withHead ? await ask({ ...common, method: 'HEAD', isFinal: ({ status }) => status !== 429 }) : undefined
  if (head && (head.status === 429 || (isPlace(head) && head.hops.length > 1) || head.foreignPlace)) return head
  const answer = await ask({ ...common, headers: { range: 'bytes=0-0' } })
  return head && isPlace(head) ? { ...answer, hops: [...head.hops, ...answer.hops] } : answer
}

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
