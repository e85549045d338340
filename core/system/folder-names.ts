import { readdir } from 'node:fs/promises'
import { isSystemError } from '../errors.ts'

/** Names of the entries of a folder; none where there is no such folder. */
export async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder)
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return []
    throw error
  }
}
