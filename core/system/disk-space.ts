import { statfs } from 'node:fs/promises'
import { CorralError } from '../errors.ts'
import { formatBytes } from './bytes.ts'

/** Bytes that corral's user can still write on the disk of a folder that is there. */
export async function freeSpace(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder)
  return bavail * bsize
}

/**
 * @param what needs so many bytes, with its verb: `The file needs`
 * @param instead what its user can do other than removing models
 * @throws CorralError `insufficient_storage` with both numbers when the disk of the folder has less free
 */
export async function requireSpace(
  folder: string,
  required: number,
  what: string,
  instead = 'choose another disk with CORRAL_MODELS'
): Promise<void> {
  const available = await freeSpace(folder)
  if (available >= required) return
  throw new CorralError(
    'insufficient_storage',
    `${what} ${formatBytes(required)} on the disk of ${folder}, which has ${formatBytes(available)} free. ` +
      `Remove models that are not needed, or ${instead}.`,
    { details: { required, available } }
  )
}
