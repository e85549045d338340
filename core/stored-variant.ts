import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { isSystemError } from './errors.ts'
import type { Origin, StoredVariant } from './services.ts'

/** Whether files of one origin may not be stored under a name whose files have another. */
export function originConflict(present: Origin, incoming: Origin): boolean {
  return present.kind !== incoming.kind || (present.kind === 'hub' && present.from !== incoming.from)
}

/** Where something came from, behind "it": `was imported from /models/a.gguf`. */
export function originInWords({ kind, from }: Origin): string {
  return { bundled: 'came with corral', import: `was imported from ${from}`, hub: `was downloaded from ${from}` }[kind]
}

/** Whether a variant's files are still there: people delete folders by hand, and import or pull again to repair. */
export async function isWhole({ directory, files }: Pick<StoredVariant, 'directory' | 'files'>): Promise<boolean> {
  try {
    const sizes = await Promise.all(files.map(async file => (await stat(join(directory, file.path))).size))
    return sizes.every((size, index) => size === files[index]!.size)
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return false
    throw error
  }
}
