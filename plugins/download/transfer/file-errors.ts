import { dirname } from 'node:path'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { diskFull, fileTooLarge, freeSpace } from './disk-space.ts'

/** Why a file could not be fetched for now. */
export interface Trouble {
  kind: 'refused' | 'busy' | 'failed'
  /** Goes on after the host's name: `answers 403: Access denied`. */
  what: string
  status?: number
  /** Milliseconds that the server wants to be left alone. */
  wish?: number | undefined
}

/** What a client is told when trying again has been given up. */
export function troubleError(path: string, host: string, trouble: Trouble): CorralError {
  const what = `${host} ${trouble.what}`
  if (trouble.kind === 'refused' && (trouble.status === 401 || trouble.status === 403)) {
    return new CorralError(
      'hub_forbidden',
      `${path} may not be fetched: ${what}. Check the hub's token and whether its terms are agreed to.`
    )
  }
  if (trouble.kind === 'busy' && trouble.status === 429) {
    const retryAfter = Math.ceil((trouble.wish ?? 60_000) / 1000)
    return new CorralError(
      'hub_rate_limited',
      `${path} cannot be fetched for now: ${what}. Pull again in ${retryAfter} s; what was fetched is kept.`,
      { retryAfter }
    )
  }
  return new CorralError(
    'hub_unreachable',
    `${path} could not be fetched: ${what}. Pull again to continue; what was fetched is kept.`
  )
}

/** What a client is told when the disk refuses. Other errors stay as they are. */
export async function storageError(error: unknown, target: string, size: number, missing: number): Promise<unknown> {
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    const { free } = await freeSpace(target)
    return diskFull(dirname(target), missing, free)
  }
  if (isSystemError(error, 'EFBIG')) return fileTooLarge(target, size)
  if (isSystemError(error, 'EACCES', 'EPERM', 'EROFS', 'ENOENT', 'ENOTDIR', 'EIO', 'EMFILE', 'ENFILE', 'EISDIR')) {
    return new CorralError('internal', `${target} could not be written: ${messageOf(error)}.`, { cause: error })
  }
  return error
}

/** The bytes are not what the hub says they are, however often they are fetched. */
export function wrongContent(path: string, expected: string, got: string): CorralError {
  return new CorralError(
    'checksum_mismatch',
    `${path} is not what the hub says it is: ${expected} was expected and ${got} came. Its partial data were removed; pull again, and if that fails too, the hub or something on the way to it is at fault.`,
    { details: { path, expected, got } }
  )
}
