import { createHash } from 'node:crypto'
import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { printable } from '../../../../core/system/printable.ts'

/** Percent-encodes each part of a path. */
export function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/')
}

/** Maximum files of a repository in which corral looks for a model. */
const MAX_FILES = 100_000

/** @throws CorralError `unsupported_capability` if the listing has too many files */
export function requireFewFiles(count: number, title: string, id: string): void {
  if (count <= MAX_FILES) return
  throw new CorralError(
    'unsupported_capability',
    `"${id}" has more than ${MAX_FILES.toLocaleString('en')} files at ${title}, too many to look for a model among them. Choose another repository.`,
    { param: 'model' }
  )
}

/** The error for a hub's statement about a file that cannot be right. */
export function invalidFact(what: string, value: unknown, file: string): InvalidFact {
  const shown = printable(JSON.stringify(value) ?? String(value), 80)
  return new InvalidFact(`says that the ${what} of ${JSON.stringify(printable(file, 200))} is ${shown}`)
}

/** Its message is a clause about the hub. */
export class InvalidFact extends Error {}

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
  throw invalidFact('size', value, file)
}

/** Returns a file of a listing, with the digests that are known. */
export function hubFile(path: string, size: number | undefined, sha256?: string, gitSha1?: string): HubFile {
  return { path, size, ...(sha256 ? { sha256 } : {}), ...(gitSha1 ? { gitSha1 } : {}) }
}

/** Identifies a listing's content, whatever its order, for hubs without commits. */
export function fingerprint(files: readonly HubFile[]): string {
  const lines = files.map(({ path, size, sha256, gitSha1 }) => JSON.stringify([path, size, sha256 ?? gitSha1])).sort()
  return `listing-${createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 40)}`
}

/** Returns whether a revision is a fingerprint. The hub does not know fingerprints. */
export function isFingerprint(revision: string): boolean {
  return revision.startsWith('listing-')
}

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
  if (hex === undefined) throw invalidFact('SHA-256', value, file)
  return hex
}

export function sha1Hex(value: unknown): string | undefined {
  return typeof value === 'string' && /^[0-9a-f]{40}$/i.test(value) ? value.toLowerCase() : undefined
}

function hexFromBase64(text: string | undefined): string | undefined {
  if (!text || !/^[A-Za-z0-9+/]{43}=$/.test(text)) return undefined
  return Buffer.from(text, 'base64').toString('hex')
}

/** Returns the SHA-256 of a whole file from response headers, in any of the common forms. */
export function sha256FromHeaders(headers: Record<string, string>): string | undefined {
  return (
    sha256Hex(headers['x-linked-etag']) ??
    hexFromBase64(/(?:^|,)\s*sha-256=:([^:]+):/i.exec(headers['repr-digest'] ?? '')?.[1]) ??
    hexFromBase64(/(?:^|,)\s*sha-256=([^,\s]+)/i.exec(headers.digest ?? '')?.[1]) ??
    // For a multipart upload this is a digest of digests with a suffix, which does not match here.
    hexFromBase64(headers['x-amz-checksum-sha256'])
  )
}
