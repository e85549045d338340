import { statfs } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { CorralError, errorMessage, isSystemError } from '../../../../core/errors.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { diskRefusal } from '../../../../core/system/disk-space.ts'

export interface FetchProblem {
  /** Follows the host's name: `answers 403: Access denied`. */
  what: string
  /** Status of a response that refuses the request. Undefined for other problems. */
  status?: number
  retryAfter?: number | undefined
  isPage?: boolean
}

export function fetchError(path: string, host: string, problem: FetchProblem): CorralError {
  const what = `${host} ${problem.what}`
  const { status, isPage, retryAfter = 60 } = problem
  const isForbidden = status === 401 || status === 403
  if (status === 451)
    return forbidden(`${path} is not delivered for legal reasons: ${what}. Choose another repository of the model.`)
  if (!isPage && isForbidden)
    return forbidden(
      `${path} may not be fetched: ${what}. Check the hub's token, and whether you have agreed to the hub's terms.`
    )
  if (!isPage && status === 429) {
    const message = `${path} cannot be fetched for now: ${what}. Pull again in ${retryAfter} s; downloaded data is kept.`
    return new CorralError('hub_rate_limited', message, { retryAfter })
  }
  const page =
    'A proxy or a login page seems to answer instead of the hub: log in to this network, or check the proxy settings. '
  return new CorralError(
    'hub_unreachable',
    `${path} could not be fetched: ${what}. ${isPage ? page : ''}Pull again to continue; downloaded data is kept.`
  )
}

const forbidden = (message: string) => new CorralError('hub_forbidden', message)

/** Explains a failed write. Other errors are returned unchanged. */
export async function storageError(error: unknown, target: string, size: number, missing: number): Promise<unknown> {
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    const { free } = await diskSpace(dirname(target))
    return diskFull(missing, free)
  }
  if (isSystemError(error, 'EFBIG')) {
    return new CorralError(
      'insufficient_storage',
      `The file system of ${dirname(target)} does not accept a file of ${formatBytes(size)} (FAT32 ends at 4.3 GB). Keep the models on another disk: set CORRAL_MODELS.`,
      { details: { required: size } }
    )
  }
  const refusal = diskRefusal(error, `${basename(target)} was not written`, 'models')
  if (refusal) return refusal
  if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'EIO', 'EMFILE', 'ENFILE', 'EISDIR')) {
    return new CorralError('internal', `${target} could not be written: ${errorMessage(error)}.`, { cause: error })
  }
  return error
}

/** The content differs from the hub's digest or size, even after it was downloaded again. */
export function wrongContent(path: string, expected: string, got: string): CorralError {
  return new CorralError(
    'checksum_mismatch',
    `${path} does not match what the hub announced: expected ${expected}, got ${got}. Its partial data was removed. Pull again. If that fails too, the hub or a server in between is at fault.`,
    { details: { path, expected, got } }
  )
}

const MAX_RESERVE_BYTES = 256 * 1024 * 1024

/** Returns the free bytes on a folder's disk, and the reserve that must stay free. */
export async function diskSpace(folder: string): Promise<{ free: number; reserve: number }> {
  const { bavail, blocks, bsize } = await statfs(folder)
  return { free: bavail * bsize, reserve: Math.min(MAX_RESERVE_BYTES, Math.floor(blocks * bsize * 0.02)) }
}

export function diskFull(required: number, available: number): CorralError {
  return new CorralError(
    'insufficient_storage',
    `The disk of the models has ${formatBytes(available)} free and ${formatBytes(required)} are needed. Free some space and pull again to continue; downloaded data is kept.`,
    { details: { required, available } }
  )
}
