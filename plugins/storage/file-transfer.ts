import { createHash } from 'node:crypto'
import { constants, copyFile, type FileHandle, link, open, rm, stat } from 'node:fs/promises'
import { isSystemError } from '../../core/errors.ts'
import { requireSpace } from '../../core/system/disk-space.ts'

/** Small enough that hashing one piece does not hold up the event loop. */
const PIECE = 512 * 1024

export interface TransferOptions {
  signal?: AbortSignal
  /** Called with the bytes done since the last call. */
  onBytes?: (bytes: number) => void
  /** Called when it is copied because it cannot be linked. */
  onCopy?: () => void
  /** Whether the store may share the file with its other owner. */
  allowHardLink: boolean
  /** Its SHA-256 where that was just computed: a linked file is not read for it once more. */
  sha256?: string
  /** Where the copies go, and the bytes that this file and those after it will take there if they must be copied. */
  space: { folder: string; bytes: number }
}

/**
 * Puts a file into the store and gives its SHA-256 (64 hex digits): by reflink, else by hard link, else by copy.
 *
 * A hard link costs no space, but the file then has two owners: who writes into the original *in place* changes the
 * model too. Downloaders and converters replace files instead, which leaves the link as it was; the digest in the
 * manifest tells whether the content is still the imported one.
 *
 * @throws CorralError `insufficient_storage` with both numbers when a copy does not fit
 */
export async function transferFile(source: string, target: string, options: TransferOptions): Promise<string> {
  options.signal?.throwIfAborted()
  if (await linkFile(source, target, options)) {
    if (options.sha256 !== undefined) {
      options.onBytes?.((await stat(target)).size)
      return options.sha256
    }
    // The store's own file: a reflink no longer follows its source.
    return digestOf(target, undefined, options)
  }
  options.onCopy?.()
  await requireSpace(options.space.folder, options.space.bytes, 'The model needs')
  const copy = await open(target, 'wx', 0o644)
  try {
    const digest = await digestOf(source, copy, options)
    await copy.sync()
    return digest
  } finally {
    await copy.close()
  }
}

async function linkFile(source: string, target: string, options: TransferOptions): Promise<boolean> {
  const { allowHardLink, sha256 } = options
  // A clone is read for the digest in any case; where the digest is known, the file's very bytes are what it is of.
  if (allowHardLink && sha256 !== undefined) return (await hardLink(source, target)) || (await reflink(source, target))
  return (await reflink(source, target)) || (allowHardLink && (await hardLink(source, target)))
}

async function reflink(source: string, target: string): Promise<boolean> {
  try {
    await copyFile(source, target, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL)
    return true
  } catch (error) {
    if (isSystemError(error, 'EEXIST')) throw error
    // Systems answer a clone they cannot make with a dozen codes, and some leave an empty file behind.
    await rm(target, { force: true })
    return false
  }
}

async function hardLink(source: string, target: string): Promise<boolean> {
  try {
    await link(source, target)
    return true
  } catch (error) {
    if (isSystemError(error, 'EEXIST')) throw error
    // Another file system, one without links, or a file of another user: a copy does it.
    return false
  }
}

/** Reads a file once for its SHA-256, writing what was read to `copy` if there is one. */
async function digestOf(source: string, copy: FileHandle | undefined, options: TransferOptions): Promise<string> {
  const hash = createHash('sha256')
  const buffer = Buffer.allocUnsafe(PIECE)
  const file = await open(source, 'r')
  try {
    for (;;) {
      options.signal?.throwIfAborted()
      const { bytesRead } = await file.read(buffer, 0, PIECE, null)
      if (bytesRead === 0) return hash.digest('hex')
      const piece = buffer.subarray(0, bytesRead)
      hash.update(piece)
      if (copy) await writeAll(copy, piece)
      options.onBytes?.(bytesRead)
    }
  } finally {
    await file.close()
  }
}

async function writeAll(file: FileHandle, piece: Buffer): Promise<void> {
  for (let offset = 0; offset < piece.length; ) {
    offset += (await file.write(piece, offset, piece.length - offset)).bytesWritten
  }
}
