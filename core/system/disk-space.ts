import { accessSync, constants, existsSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { CorralError, type ErrorCode, isSystemError } from '../errors.ts'
import { formatBytes } from './bytes.ts'

/** The folders that corral writes to, and the variable that moves each. */
const PLACES = {
  models: { name: 'the models folder', variable: 'CORRAL_MODELS' },
  home: { name: 'the data directory', variable: 'CORRAL_HOME' }
}
type Place = keyof typeof PLACES

/** Bytes that corral's user can still write on the disk of an existing folder. */
export async function freeSpace(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder)
  return bavail * bsize
}

/** Requires bytes of disk for `what` (with its verb). @throws CorralError `insufficient_storage` */
export async function requireSpace(folder: string, required: number, what: string, place: Place): Promise<void> {
  const available = await freeSpace(folder)
  if (available >= required) return
  const { name, variable } = PLACES[place]
  const message =
    `${what} ${formatBytes(required)} on the disk of ${name}, which has ${formatBytes(available)} free. ` +
    `Free some space, or choose another disk with ${variable}.`
  throw new CorralError('insufficient_storage', message, { details: { required, available } })
}

/**
 * The error for a write that the file system refused; undefined for other failures. It is shown to clients, so it names
 * no path.
 * @param what the failed work: `The key was not saved`
 * @returns `insufficient_storage` if the disk or a quota is full, `storage_not_writable` if writing is not allowed
 */
export function diskRefusal(error: unknown, what: string, place?: Place): CorralError | undefined {
  const { name, variable } = place ? PLACES[place] : { name: '', variable: '' }
  const elsewhere = place ? `, or choose another disk with ${variable}` : ''
  const refusal = (code: ErrorCode, why: string, advice: string) =>
    new CorralError(code, `${what}: ${why}. ${advice}${elsewhere}.`, { cause: error })
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    return refusal('insufficient_storage', name ? `the disk of ${name} is full` : 'the disk is full', 'Free some space')
  }
  if (isReadOnly(error)) {
    return refusal('storage_not_writable', `${name || 'the disk'} is read-only`, 'Make it writable')
  }
  if (isSystemError(error, 'EACCES', 'EPERM')) {
    const why = `corral's user may not write into ${name || 'the folder'}`
    return refusal('storage_not_writable', why, 'Give it that right')
  }
  return undefined
}

/** Whether a file system is read-only. Node.js reports ENOENT if it cannot create a folder and its parents there. */
export function isReadOnly(error: unknown): boolean {
  if (isSystemError(error, 'EROFS')) return true
  if (!isSystemError(error, 'ENOENT') || error.syscall !== 'mkdir' || error.path === undefined) return false
  let folder = dirname(error.path)
  while (!existsSync(folder) && folder !== dirname(folder)) folder = dirname(folder)
  try {
    accessSync(folder, constants.W_OK)
    return false
  } catch (refusal) {
    return isSystemError(refusal, 'EROFS')
  }
}
