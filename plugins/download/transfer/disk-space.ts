import type { StatsFs } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'

const LARGEST_RESERVE = 256 * 1024 * 1024

/** Bytes that can be written beside `path`, and those that are left free. */
export async function freeSpace(path: string): Promise<{ free: number; reserve: number }> {
  const { bavail, blocks, bsize } = await statsOf(dirname(path))
  return { free: bavail * bsize, reserve: Math.min(LARGEST_RESERVE, Math.floor(blocks * bsize * 0.02)) }
}

/** Of the disk on which a folder is or will be. */
async function statsOf(folder: string): Promise<StatsFs> {
  try {
    return await statfs(folder)
  } catch (error) {
    if (!isSystemError(error, 'ENOENT') || dirname(folder) === folder) throw error
    return await statsOf(dirname(folder))
  }
}

/** @throws CorralError `insufficient_storage` when so many bytes do not fit */
export async function assertSpace(path: string, needed: number): Promise<void> {
  const { free, reserve } = await freeSpace(path)
  if (needed + reserve > free) throw diskFull(dirname(path), needed + reserve, free)
}

/** There is too little space for what is missing. */
export function diskFull(folder: string, required: number, available: number): CorralError {
  return new CorralError(
    'insufficient_storage',
    `${folder} has ${formatBytes(available)} free and ${formatBytes(required)} are needed. Free some space and pull again: what was fetched is kept and continued.`,
    { details: { required, available } }
  )
}

/** A file is larger than the file system allows, as on FAT32 with its 4 GiB. */
export function fileTooLarge(path: string, size: number): CorralError {
  return new CorralError(
    'insufficient_storage',
    `The file system of ${dirname(path)} does not take a file of ${formatBytes(size)} (FAT32 ends at 4 GiB). Keep the models on another disk: set CORRAL_MODELS.`,
    { details: { required: size } }
  )
}
