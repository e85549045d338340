import { createHash } from 'node:crypto'
import type { HubFile } from '../../../core/contracts/hubs.ts'

/** Percent-encodes each part of a path. */
export function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/')
}

/** The size of a file in a listing. */
export function sizeOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : undefined
}

/** A file of a listing, with the digests that are known. */
export function hubFile(path: string, size: number | undefined, sha256?: string, gitSha1?: string): HubFile {
  return { path, size, ...(sha256 ? { sha256 } : {}), ...(gitSha1 ? { gitSha1 } : {}) }
}

/** Identifies the content of a listing, for hubs that name no commit. The order of the files does not matter. */
export function fingerprint(files: readonly HubFile[]): string {
  const lines = files.map(({ path, size, sha256, gitSha1 }) => JSON.stringify([path, size, sha256 ?? gitSha1])).sort()
  return `listing-${createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 40)}`
}

/** Whether a revision is a fingerprint, which is unknown to the hub. */
export function isFingerprint(revision: string): boolean {
  return revision.startsWith('listing-')
}

/** An ETag without its quotes; unquoted values are accepted too. */
export function parseEtag(header: string | undefined): { value: string; weak: boolean } | undefined {
  const match = /^\s*(W\/)?(?:"([^"]*)"|([^\s"]+))\s*$/.exec(header ?? '')
  const value = match?.[2] ?? match?.[3]
  return value ? { value, weak: match?.[1] !== undefined } : undefined
}

/** A strong ETag with its quotes; undefined for weak and missing ones. */
export function strongEtag(header: string | undefined): string | undefined {
  const tag = parseEtag(header)
  return tag && !tag.weak ? `"${tag.value}"` : undefined
}

/** 64 hex digits in lower case, from whatever spelling of a SHA-256 (`sha256:…`, quoted, upper case). */
export function sha256Hex(value: unknown): string | undefined {
  if (typeof value !== 'string') return undefined
  const hex = (parseEtag(value)?.value ?? '').replace(/^sha-?256[:-]/i, '')
  return /^[0-9a-f]{64}$/i.test(hex) ? hex.toLowerCase() : undefined
}

/** 40 hex digits in lower case. */
export function sha1Hex(value: unknown): string | undefined {
  return typeof value === 'string' && /^[0-9a-f]{40}$/i.test(value) ? value.toLowerCase() : undefined
}

function hexOfBase64(text: string | undefined): string | undefined {
  if (!text || !/^[A-Za-z0-9+/]{43}=$/.test(text)) return undefined
  return Buffer.from(text, 'base64').toString('hex')
}

/** The SHA-256 of a whole file from response headers, in any of the forms in use. */
export function sha256OfHeaders(headers: Record<string, string>): string | undefined {
  return (
    sha256Hex(headers['x-linked-etag']) ??
    hexOfBase64(/(?:^|,)\s*sha-256=:([^:]+):/i.exec(headers['repr-digest'] ?? '')?.[1]) ??
    hexOfBase64(/(?:^|,)\s*sha-256=([^,\s]+)/i.exec(headers.digest ?? '')?.[1]) ??
    // Of an upload in parts it is a digest of digests followed by their number, which does not match here.
    hexOfBase64(headers['x-amz-checksum-sha256'])
  )
}
