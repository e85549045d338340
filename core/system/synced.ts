import { open } from 'node:fs/promises'
import { whenMissing } from '../errors.ts'

/** Makes the content of a file, or a change in a folder, survive a power failure. A missing folder is not an error. */
export async function synced(path: string, kind: 'file' | 'folder'): Promise<void> {
  const isFile = kind === 'file'
  // Windows cannot open folders, and does not need it.
  if (!isFile && process.platform === 'win32') return
  const handle = isFile ? await open(path, 'r+') : await open(path, 'r').catch(whenMissing)
  try {
    await handle?.sync()
  } finally {
    await handle?.close()
  }
}
