import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { isSystemError } from '../../../core/errors.ts'
import { ChunkMap } from './chunks.ts'

/** Identifies the content of a partial file. Partial data of other content are discarded. */
export interface JournalSubject {
  identity: string
  path: string
  size: number
  sha256: string | undefined
  gitSha1: string | undefined
  /** The ETag or other identity of the content at its source; for files without a digest. */
  place: string | undefined
}

const VERSION = 1
/** Stands for an incomplete chunk. */
const NONE = '--------'

export function partPath(target: string): string {
  return `${target}.part`
}

function journalPath(target: string): string {
  return `${target}.part.json`
}

/** Serialises a journal. */
export function journalText(subject: JournalSubject, map: ChunkMap): string {
  let whole = ''
  const begun: [chunk: number, length: number, crc: string][] = []
  for (let chunk = 0; chunk < map.count; chunk++) {
    const crc = map.crc[chunk]!.toString(16).padStart(8, '0')
    whole += map.isComplete(chunk) ? crc : NONE
    if (!map.isComplete(chunk) && map.have[chunk]! > 0) begun.push([chunk, map.have[chunk]!, crc])
  }
  return JSON.stringify({
    version: VERSION,
    ...subject,
    chunkSize: map.chunkSize,
    completed: map.completed,
    whole,
    begun
  })
}

/** Parses a journal; undefined when it is damaged or of another version. */
export function parseJournal(text: string): { subject: JournalSubject; map: ChunkMap } | undefined {
  let value: Record<string, unknown>
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null || value.version !== VERSION) return undefined
  const { identity, path, size, sha256, gitSha1, place, chunkSize, whole, begun } = value
  const isCount = (number: unknown): number is number => Number.isSafeInteger(number) && (number as number) >= 0
  const isOptional = (text: unknown): text is string | undefined => text === undefined || typeof text === 'string'
  if (typeof identity !== 'string' || typeof path !== 'string' || !isCount(size)) return undefined
  if (!isOptional(sha256) || !isOptional(gitSha1) || !isOptional(place)) return undefined
  if (!isCount(chunkSize) || chunkSize < 4096 || size / chunkSize > 2 ** 20) return undefined
  const map = new ChunkMap(size, chunkSize)
  if (typeof whole !== 'string' || whole.length !== map.count * 8 || !Array.isArray(begun)) return undefined
  for (let chunk = 0; chunk < map.count; chunk++) {
    const digits = whole.slice(chunk * 8, chunk * 8 + 8)
    if (digits === NONE) continue
    if (!/^[0-9a-f]{8}$/.test(digits)) return undefined
    map.add(chunk, map.end(chunk) - map.start(chunk), Number.parseInt(digits, 16))
  }
  for (const entry of begun) {
    if (!Array.isArray(entry)) return undefined
    const [chunk, length, digits] = entry
    if (!isCount(chunk) || chunk >= map.count || !isCount(length)) return undefined
    if (map.have[chunk] !== 0 || length >= map.end(chunk) - map.start(chunk)) return undefined
    if (typeof digits !== 'string' || !/^[0-9a-f]{8}$/.test(digits)) return undefined
    map.add(chunk, length, Number.parseInt(digits, 16))
  }
  return { subject: { identity, path, size, sha256, gitSha1, place }, map }
}

/**
 * Whether partial data belong to the requested content. Sizes are compared where both are known; the identity at the
 * source (`place`) is compared later, when the server has answered.
 */
export function continues(
  subject: JournalSubject,
  wanted: Omit<JournalSubject, 'size' | 'place'> & { size: number | undefined }
): boolean {
  return (
    subject.identity === wanted.identity &&
    subject.path === wanted.path &&
    subject.sha256 === wanted.sha256 &&
    subject.gitSha1 === wanted.gitSha1 &&
    (wanted.size === undefined || subject.size === wanted.size)
  )
}

async function read(target: string): Promise<ReturnType<typeof parseJournal>> {
  let text: string
  try {
    text = await readFile(journalPath(target), 'utf8')
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    throw error
  }
  return parseJournal(text)
}

/** The journal of a partial file; undefined when there is nothing to continue. */
export async function loadJournal(target: string): Promise<ReturnType<typeof parseJournal>> {
  try {
    await stat(partPath(target))
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    throw error
  }
  return await read(target)
}

/** Replaces the journal atomically. */
export async function saveJournal(target: string, text: string): Promise<void> {
  const path = journalPath(target)
  // Flushed before it replaces the older one: an empty journal after a power failure would cost the whole partial file.
  await writeFile(`${path}.new`, text, { flush: true })
  await rename(`${path}.new`, path)
}

export async function removeJournal(target: string): Promise<void> {
  const path = journalPath(target)
  await rm(path, { force: true })
  await rm(`${path}.new`, { force: true })
}

/** Bytes of a target that are on disk according to its journal. */
export async function partialBytes(target: string): Promise<number> {
  return (await loadJournal(target))?.map.completed ?? 0
}

/** Removes partial data of a target. */
export async function removePartial(target: string): Promise<void> {
  await rm(partPath(target), { force: true })
  await removeJournal(target)
}
