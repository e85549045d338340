import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { errorMessage, isSystemError } from '../errors.ts'

/** Digests of the files beside it, as `sha256sum --check` reads them. */
export const DIGEST_LIST = 'SHA256SUMS'

export interface Reading {
  signal?: AbortSignal | undefined
  onBytes?: ((bytes: number) => void) | undefined
}

/** A file that is not as it was recorded. */
export interface Difference {
  path: string
  problem: string
}

/** Returns the SHA-256 of a file as 64 hex digits. */
export async function fileDigest(path: string, { signal, onBytes }: Reading = {}): Promise<string> {
  const hash = createHash('sha256')
  for await (const piece of createReadStream(path, { signal, highWaterMark: 512 * 1024 })) {
    hash.update(piece)
    onBytes?.(piece.length)
  }
  return hash.digest('hex')
}

/** Lists the files in a folder and its subfolders, also through links to files, with forward slashes. */
export async function filesIn(folder: string): Promise<string[]> {
  const files: string[] = []
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name)
    const found = entry.isSymbolicLink() ? await stat(path).catch(() => undefined) : entry
    if (found?.isFile()) files.push(relative(folder, path).split(sep).join('/'))
  }
  return files.filter(path => path !== DIGEST_LIST).sort()
}

/** Records the digests of all files in a folder. */
export async function recordDigests(folder: string, signal?: AbortSignal): Promise<void> {
  const lines: string[] = []
  for (const path of await filesIn(folder)) lines.push(`${await fileDigest(join(folder, path), { signal })}  ${path}\n`)
  await writeFileAtomic(join(folder, DIGEST_LIST), lines.join(''))
}

/** Compares a folder with its recorded digests. Returns undefined if there are none. */
export async function checkDigests(folder: string, reading: Reading = {}) {
  const text = await readFile(join(folder, DIGEST_LIST), 'utf8').catch(error => {
    if (!isSystemError(error, 'ENOENT', 'ENOTDIR')) throw error
    return undefined
  })
  if (text === undefined) return undefined
  const recorded = new Map(
    [...text.matchAll(/^([0-9a-f]{64}) [ *](.+)$/gm)].map(([, digest, path]) => [path!, digest!])
  )
  const differences: Difference[] = []
  for (const [path, sha256] of recorded) differences.push(...(await compareFile(folder, { path, sha256 }, reading)))
  for (const path of await filesIn(folder))
    if (!recorded.has(path)) differences.push({ path, problem: 'is not listed' })
  return { files: recorded.size, list: createHash('sha256').update(text).digest('hex'), differences }
}

/** Compares a file with its recorded size and digest. Returns at most one difference. */
export async function compareFile(
  folder: string,
  { path, size, sha256 }: { path: string; size?: number; sha256?: string },
  reading: Reading = {}
): Promise<Difference[]> {
  const file = join(folder, ...path.split('/'))
  try {
    const found = await stat(file)
    if (size !== undefined && found.size !== size) {
      return [{ path, problem: `has ${found.size} bytes instead of ${size}` }]
    }
    if (sha256 === undefined) return []
    const now = await fileDigest(file, reading)
    return now === sha256 ? [] : [{ path, problem: `has the SHA-256 ${now} instead of ${sha256}` }]
  } catch (error) {
    reading.signal?.throwIfAborted()
    return [{ path, problem: isSystemError(error, 'ENOENT', 'ENOTDIR') ? 'is missing' : errorMessage(error) }]
  }
}
