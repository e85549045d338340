import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { CorralError, isSystemError } from '../errors.ts'

/** Which file it is, whatever its name: two opened files are the same one when these are. */
export interface FileIdentity {
  dev: bigint
  ino: bigint
}

/** Without waiting for the writer of a pipe, and not through a link that took the file's place. Windows has neither. */
const FLAGS = constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

/**
 * Opens a regular file for reading. Pipes, devices and folders are refused without being read.
 * @param path without symbolic links at its end
 * @param known the file that it must be
 * @throws CorralError `invalid_request` when it is no regular file or another one; what the system says
 */
export async function openRegularFile(path: string, known?: FileIdentity): Promise<FileHandle> {
  const replaced = (cause?: unknown) =>
    new CorralError(
      'invalid_request',
      `${path} was replaced or removed while it was read. Wait until it is complete, then try again.`,
      { param: 'path', cause }
    )
  const file = await open(path, FLAGS).catch(error => {
    // A link has taken its place, or the file that was there a moment ago has gone.
    const isGone = isSystemError(error, 'ELOOP') || (known !== undefined && isSystemError(error, 'ENOENT', 'ENOTDIR'))
    throw isGone ? replaced(error) : error
  })
  try {
    const facts = await file.stat({ bigint: true })
    if (!facts.isFile()) throw new CorralError('invalid_request', `${path} is no regular file.`, { param: 'path' })
    if (known && !isSameFile(facts, known)) throw replaced()
    return file
  } catch (error) {
    await file.close()
    throw error
  }
}

export function isSameFile(one: FileIdentity, other: FileIdentity): boolean {
  return one.dev === other.dev && one.ino === other.ino
}

/** A path that names an opened file itself, where the system has such paths; else the one it was opened by. */
export function pathOfOpened(file: FileHandle, path: string): string {
  return process.platform === 'linux' ? `/proc/self/fd/${file.fd}` : path
}

/** All of a file's bytes, as many as it had when this began: what lies below /proc has none, and is not read. */
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
