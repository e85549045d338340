import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { isSystemError } from '../../../core/errors.ts'
import type { AuditEntry } from './audit-entry.ts'

const CHUNK = 256 * 1024
const LINE_END = 10

/**
 * Returns the latest matching entries, oldest first, without reading further back than necessary.
 * @param files newest first
 * @param query `since`: milliseconds since the epoch, when the requests ended; `key`: the name of their key
 * @throws the signal's reason, or a file system error
 */
export async function readAudit(
  files: readonly string[],
  { since = 0, key, limit }: { since?: number | undefined; key?: string | undefined; limit: number },
  signal: AbortSignal
): Promise<AuditEntry[]> {
  const found: AuditEntry[] = []
  const wanted = key === undefined ? undefined : `"key":${JSON.stringify(key)}`
  const seen = new Set<number>()
  for (const file of files) {
    for await (const line of linesFromEnd(file, seen)) {
      signal.throwIfAborted()
      const entry = parseEntry(line)
      if (!entry) continue
      if (Date.parse(entry.time) < since) return found.reverse()
      // Search the text first: most lines belong to other keys.
      if (wanted !== undefined && !(line.includes(wanted) && entry.key === key)) continue
      found.push(entry)
      if (found.length >= limit) return found.reverse()
    }
  }
  return found.reverse()
}

function parseEntry(line: string): AuditEntry | undefined {
  try {
    const entry = JSON.parse(line)
    return typeof entry?.time === 'string' ? entry : undefined
  } catch {
    return undefined
  }
}

/** Yields the lines of a file, last line first. @param seen inodes of read files: one may be renamed meanwhile */
async function* linesFromEnd(path: string, seen: Set<number>): AsyncGenerator<string> {
  const handle = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)).catch(error => {
    // The file was deleted because of its age, or nothing has been written yet.
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  })
  if (!handle) return
  try {
    const { ino, size } = await handle.stat()
    if (seen.has(ino)) return
    seen.add(ino)
    let rest = Buffer.alloc(0)
    for (let end = size; end > 0; ) {
      const start = Math.max(0, end - CHUNK)
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(end - start), 0, end - start, start)
      const piece = Buffer.concat([buffer.subarray(0, bytesRead), rest])
      end = start
      // The first line may begin in the preceding chunk.
      const at = start === 0 ? 0 : piece.indexOf(LINE_END) + 1
      rest = at === 0 && start > 0 ? piece : piece.subarray(0, at)
      if (rest === piece) continue
      for (const line of piece.subarray(at).toString('utf8').split('\n').reverse()) if (line !== '') yield line
    }
  } finally {
    await handle.close()
  }
}
