import { createHash } from 'node:crypto'
import type { FileLocation, HubFile, HubMatch } from '../../../core/contracts/hubs.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { isLoopback } from '../../../core/system/private-address.ts'
import { retryAfterSeconds } from '../../../core/system/retry-after.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { isWebPage, pageTitle } from '../../../core/system/web-page.ts'
import {
  type Headers,
  type HubResponse,
  LOCATE_RETRY_MS,
  type OutgoingRequest,
  shownAddress,
  USER_AGENT
} from './hub-fetch.ts'
import RULES from './refusal-rules.json' with { type: 'json' }
import REFUSALS from './refusals.json' with { type: 'json' }

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
function readSize(value: unknown, file: string): number | undefined {
  if (value === undefined || value === null) return undefined
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number
  throw new InvalidFact('size', value, file)
}

/** Describes a file as a hub lists it. @throws InvalidFact */
export function hubFile(path: string, size: unknown, digest?: unknown, gitSha1?: string): HubFile {
  const sha256 = readSha256(digest, path)
  return { path, size: readSize(size, path), ...(sha256 && { sha256 }), ...(gitSha1 && { gitSha1 }) }
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
function readSha256(value: unknown, file: string): string | undefined {
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

export interface Subject {
  /** For example `Hugging Face`, with its address if that is not the usual one. */
  title: string
  id: string
  page?: string
  revision?: string | undefined
  /** The default branch, if it is not `main`. */
  usualBranch?: string
  file?: string | undefined
  /** How to set a token: `set HF_TOKEN or …`. Undefined if a hub has none. */
  tokenAdvice?: string
  /** The settings with the hub's address: `HF_ENDPOINT or …`. */
  endpointAdvice?: string
}

/** Why a hub refuses a request. Each hub distinguishes these in its own way. */
export type RefusalKind = keyof typeof REFUSALS

/** Patterns and facts, all of which a response must match. `answer` is the status and the hub's own code. */
interface RefusalRule {
  kind: string
  answer?: string
  text?: string
  message?: string
  isFile?: boolean
  isInCheck?: boolean
  authorised?: boolean
  /** A retry would not help, whatever the status. */
  isFinal?: boolean
}

/** Finds the first rule of a hub that matches a refusal. @param facts the hub's own code, and what was requested */
export function findRefusalRule(
  hub: keyof typeof RULES,
  response: HubResponse,
  facts: { code: string | undefined; isFile: boolean; isInCheck?: boolean }
) {
  const texts = {
    answer: `${response.status} ${facts.code ?? ''}`,
    text: response.text,
    message: serverMessage(response)
  }
  const flags = { isInCheck: false, ...facts, authorised: response.credentials !== undefined }
  const matches = (rule: RefusalRule) =>
    (['answer', 'text', 'message'] as const).every(
      name => rule[name] === undefined || new RegExp(rule[name], name === 'message' ? 'i' : '').test(texts[name])
    ) && (['isFile', 'isInCheck', 'authorised'] as const).every(name => (rule[name] ?? flags[name]) === flags[name])
  const rule = (RULES[hub] as RefusalRule[]).find(matches)!
  return { kind: rule.kind as RefusalKind, isFinal: rule.isFinal === true }
}

/** Classifies refusals that mean the same at every hub. A web page with a 404 may be the hub's own. */
function commonKind(response: HubResponse): RefusalKind | undefined {
  const { status } = response
  if (status === 407) return 'proxy-login'
  if (status === 451) return 'legal'
  if (status === 511) return 'page'
  return isHtml(response) && (status < 400 || status === 401 || status === 403) ? 'page' : undefined
}

/** Creates the error for a hub's refusal. @param hubCode more specific than the status */
export function hubRefusal(
  kind: RefusalKind,
  response: HubResponse,
  subject: Subject,
  now: number,
  hubCode = ''
): CorralError {
  const { title, id, file, revision = 'main', usualBranch, tokenAdvice } = subject
  const hubStatus = response.status
  const retryAfter = retryAfterSeconds(response.headers, now)
  const { code, ...messages } = REFUSALS[commonKind(response) ?? kind]
  const message =
    response.credentials !== undefined && 'authorised' in messages ? messages.authorised : messages.anonymous
  const quoted = quoteServer(title, response)
  const isLasting = hubStatus >= 400 && hubStatus < 500 && ![408, 425, 429].includes(hubStatus)
  const facts: Record<string, string | undefined> = {
    endpointAdvice: 'the address of the hub',
    ...subject,
    revision,
    what: file ? `the file "${file}" of "${id}"` : `"${id}"`,
    status: hubCode && hubCode !== String(hubStatus) ? `${hubStatus}, code ${hubCode}` : String(hubStatus),
    quoted,
    badName: hubStatus === 400 || hubStatus === 422 ? quoted : '',
    when: retryAfter === undefined ? 'in a few minutes' : `in ${retryAfter} s`,
    tokenHint: tokenAdvice ? `; with a token it allows more: ${tokenAdvice}` : '',
    usualBranch: usualBranch ? `, where the usual branch is "${usualBranch}"` : '',
    wrongEndpoint: isHtml(response) ? ' It answers with an HTML page: is it the right endpoint?' : '',
    retryAdvice: isLasting ? 'Is its address right, and is there a proxy in between?' : 'Try again later.',
    pageTitle: pageTitle(response.text)
  }
  return new CorralError(
    code as ErrorCode,
    message.replace(/\{(\w+)\}/g, (_, fact: string) => String(facts[fact])),
    {
      ...(code === 'repo_not_found' ? { param: 'model' } : {}),
      details: { hub: title, repository: id, hubStatus, ...(hubCode ? { hubCode } : {}) },
      ...(retryAfter !== undefined && (kind === 'rate-limited' || kind === 'server-error') ? { retryAfter } : {})
    }
  )
}

/** The error for a model that a hub does not have, or that a reference does not name. */
export const notAtHub = (message: string, details?: Record<string, unknown>): CorralError =>
  new CorralError('repo_not_found', message, { param: 'model', ...(details && { details }) })

const isHtml = (response: Pick<HubResponse, 'headers' | 'text'>): boolean =>
  isWebPage(response.text) || /\btext\/html\b/.test(response.headers['content-type'] ?? '')

/** @param isQuoted whether to show a web page's title @throws CorralError `hub_unreachable` if it is not JSON */
export async function parseJsonResponse(
  response: Pick<HubResponse, 'url' | 'headers' | 'text'>,
  title: string,
  isQuoted = true
): Promise<unknown> {
  const { value, fault } = await parseUntrustedJson(response.text)
  if (fault === undefined) return value
  const address = shownAddress(response.url)
  if (!fault.startsWith('it is not JSON')) {
    throw new CorralError('hub_unreachable', `The reply of ${title} at ${address} cannot be used: ${fault}.`)
  }
  const page = isQuoted ? pageTitle(response.text) : ''
  const instead = isHtml(response) ? `: a proxy's or login page answered instead of the hub${page}` : ''
  const what = isHtml(response) ? 'HTML' : response.text.trim() === '' ? 'nothing' : 'something other than JSON'
  throw new CorralError(
    'hub_unreachable',
    `${address} answers with ${what}, unlike ${title}${instead}. Is the endpoint right, or is there a proxy or a login page in between?`
  )
}

/** Maximum part of a reply, in characters, that is searched for a message. */
const MAX_MESSAGE_REPLY = 64 * 1024

/** Returns a server's error message, short and on one line: from its JSON, otherwise its text. */
export function serverMessage(response: Pick<HubResponse, 'headers' | 'text'>): string {
  let message: unknown = response.headers['x-error-message']
  if (!message && !isHtml(response)) {
    const text = response.text.slice(0, MAX_MESSAGE_REPLY)
    try {
      const body: unknown = JSON.parse(text)
      message = isObject(body)
        ? (body.error ?? body.msg ?? body.Message ?? body.message ?? body.detail ?? '')
        : String(body ?? '')
      if (isObject(message)) message = message.message
    } catch {
      // If it is not JSON, the text itself is the message.
      message = text
    }
  }
  return typeof message === 'string' ? printable(message.replace(/\s+/g, ' ').trim(), MAX_MESSAGE_LENGTH) : ''
}

const MAX_MESSAGE_LENGTH = 300

/** Removes the server's own words from a response, for servers that the settings do not name. */
export function withoutServerText(response: HubResponse): HubResponse {
  const { 'x-error-message': _, ...headers } = response.headers
  return { ...response, headers, text: '' }
}

/** Returns ` <who> says: <message>.` with a server's error message, or an empty string if it sends none. */
function quoteServer(who: string, response: Pick<HubResponse, 'headers' | 'text'>): string {
  const message = serverMessage(response)
  return message === '' ? '' : ` ${who} says: ${/[.!?…]$/.test(message) ? message : `${message}.`}`
}
