import { readdir, stat } from 'node:fs/promises'
import { whenMissing } from '../errors.ts'

/** Names of the entries of a folder; empty if there is no such folder. */
export async function namesIn(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(whenMissing)) ?? []
}

/** Bytes of a file; undefined if there is no file. */
export async function fileSize(path: string): Promise<number | undefined> {
  const found = await stat(path).catch(whenMissing)
  return found?.isFile() ? found.size : undefined
}
