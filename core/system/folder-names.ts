import { readdir, stat } from 'node:fs/promises'
import { isSystemError } from '../errors.ts'

/** Names of the entries of a folder; empty if there is no such folder. */
export async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder)
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return []
    throw error
  }
}

/** Bytes of a file; undefined if there is no file. */
export async function fileSize(path: string): Promise<number | undefined> {
  try {
    const found = await stat(path)
    return found.isFile() ? found.size : undefined
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  }
}
