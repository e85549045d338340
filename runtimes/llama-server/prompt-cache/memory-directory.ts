import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, lstat, mkdir, readdir, readFile, rm, statfs, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isSystemError } from '../../../core/errors.ts'

/** Linux's file system in memory. */
const SHARED_MEMORY = '/dev/shm'
const TMPFS = 0x01021994

const memoryPrefix = () => `corral-${process.getuid?.()}-`

/** Returns the path of the folder in memory that belongs to a folder on disk. */
export function getMemoryPath(directory: string): string {
  return join(SHARED_MEMORY, memoryPrefix() + createHash('sha256').update(directory).digest('hex').slice(0, 16))
}

/** The file in a folder in memory that names the folder on disk to which it belongs. */
export const ORIGIN = 'origin'

/**
 * Creates a folder for states in memory, private to this user and this data directory, and deletes folders whose data
 * directory no longer exists. Returns undefined if the system has no file system in memory, or if another user made the
 * folder.
 */
export async function createMemoryDirectory(directory: string): Promise<string | undefined> {
  if (process.platform !== 'linux') return undefined
  const path = getMemoryPath(directory)
  try {
    if ((await statfs(SHARED_MEMORY)).type !== TMPFS) return undefined
    await mkdir(path, { mode: 0o700 }).catch(error => {
      if (!isSystemError(error, 'EEXIST')) throw error
    })
    const found = await lstat(path)
    if (!found.isDirectory() || found.uid !== process.getuid!()) return undefined
    await chmod(path, 0o700)
    await writeFile(join(path, ORIGIN), directory, { mode: 0o600 })
    for (const other of await readdir(SHARED_MEMORY)) {
      if (!other.startsWith(memoryPrefix())) continue
      // Another user could have made it, with a file that blocks every reader.
      if ((await lstat(join(SHARED_MEMORY, other)).catch(() => undefined))?.uid !== process.getuid!()) continue
      const origin = await readFile(join(SHARED_MEMORY, other, ORIGIN), 'utf8').catch(() => undefined)
      if (origin === undefined || origin === directory || existsSync(origin)) continue
      await rm(join(SHARED_MEMORY, other), { recursive: true, force: true })
    }
    return path
  } catch {
    // Without it, states are stored on disk only.
    return undefined
  }
}
