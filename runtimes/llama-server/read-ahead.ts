import { open, stat } from 'node:fs/promises'
import { freemem } from 'node:os'

/** Bytes of a part of a file. The time for its beginning shows whether the rest is in memory too. */
const PART = 32 * 2 ** 20
const BEGINNING = 2 ** 20
const BLOCK_BYTES = 4 * 2 ** 20
const MAX_MEMORY_READ_MS = 0.4

/**
 * Reads files ahead, so that they are in the system's memory before llama-server maps them and reads them in small
 * pieces, which took 1.7 times as long. Skips what is in memory, and files that do not fit into it. Never rejects.
 */
export async function readAhead(
  paths: readonly string[],
  signal: AbortSignal,
  { free = freemem(), fromMemory = MAX_MEMORY_READ_MS } = {}
): Promise<number> {
  let read = 0
  const buffer = Buffer.allocUnsafe(BLOCK_BYTES)
  try {
    const sizes = await Promise.all(paths.map(async path => (await stat(path)).size))
    if (sizes.reduce((sum, size) => sum + size, 0) > free) return 0
    for (const [index, path] of paths.entries()) {
      const file = await open(path)
      try {
        for (let part = 0; part < sizes[index]! && !signal.aborted; part += PART) {
          const began = performance.now()
          read += (await file.read(buffer, 0, BEGINNING, part)).bytesRead
          const end = performance.now() - began < fromMemory ? 0 : part + PART
          for (let at = part + BEGINNING; at < end && !signal.aborted; at += BLOCK_BYTES) {
            read += (await file.read(buffer, 0, Math.min(BLOCK_BYTES, end - at), at)).bytesRead
          }
        }
      } finally {
        await file.close()
      }
    }
  } catch {
    // llama-server reports it.
  }
  return read
}
