import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { CorralError, isSystemError } from '../errors.ts'

/** Identifies a file whatever its name: two open files with the same identity are the same file. */
export interface FileIdentity {
  dev: bigint
  ino: bigint
}

/** Do not wait for the writer of a pipe, and do not follow a link that replaced the file. Windows has neither flag. */
const FLAGS = constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

/**
 * Opens a regular file, by a path without symbolic links at its end, while it is used.
 * @throws CorralError `invalid_request` if it is not a regular file or not the `known` one; errors of the system
 */
export async function withRegularFile<T>(
  path: string,
  use: (file: FileHandle) => T | Promise<T>,
  known?: FileIdentity
): Promise<T> {
  const gone = `${path} was replaced or removed while it was read. Wait until it is complete, then try again.`
  const replaced = (cause?: unknown) => new CorralError('invalid_request', gone, { param: 'path', cause })
  const file = await open(path, FLAGS).catch(error => {
    // A link replaced it, or the file was removed a moment ago.
    const isGone = isSystemError(error, 'ELOOP') || (known !== undefined && isSystemError(error, 'ENOENT', 'ENOTDIR'))
    throw isGone ? replaced(error) : error
  })
  try {
    const facts = await file.stat({ bigint: true })
    if (!facts.isFile()) throw new CorralError('invalid_request', `${path} is not a regular file.`, { param: 'path' })
    if (known && !isSameFile(facts, known)) throw replaced()
    return await use(file)
  } finally {
    await file.close()
  }
}

export function isSameFile(one: FileIdentity, other: FileIdentity): boolean {
  return one.dev === other.dev && one.ino === other.ino
}

/** A path of the open file itself, if the system has such paths, otherwise the path by which it was opened. */
export function pathOfOpened(file: FileHandle, path: string): string {
  return process.platform === 'linux' ? `/proc/self/fd/${file.fd}` : path
}

/** All bytes of a file, up to its size at the start. Files below /proc have size 0 and are not read. */
export async function readOpened(file: FileHandle, size: number): Promise<Buffer> {
  const bytes = Buffer.alloc(size)
  let at = 0
  while (at < size) {
    const { bytesRead } = await file.read(bytes, at, size - at, at)
    if (bytesRead === 0) break
    at += bytesRead
  }
  return bytes.subarray(0, at)
}
