import type { HubFile } from '../../../core/contracts/downloads.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { sha256Hex } from '../files/etag.ts'
import { isUsablePath, sizeOf } from '../files/listing-path.ts'

export interface ModelScopeListing {
  files: HubFile[]
  /** Paths of files that the hub is still examining, and may refuse. */
  inCheck: string[]
}

/** ModelScope's list of files: folders, links and what is no safe path are left out. Undefined when it is none. */
export function readListing(body: unknown): ModelScopeListing | undefined {
  const data = isObject(body) ? (body.Data ?? body.data) : undefined
  const entries = isObject(data) ? (data.Files ?? data.files) : undefined
  if (!Array.isArray(entries)) return undefined
  const files = new Map<string, HubFile>()
  const inCheck: string[] = []
  for (const entry of entries.filter(isObject)) {
    const { Path: path, Type: type, Mode: mode } = entry
    // Modes are git's, in decimal: 40960 is a symbolic link.
    if ((type !== undefined && type !== 'blob') || String(mode) === '40960' || !isUsablePath(path)) continue
    const sha256 = sha256Hex(entry.Sha256)
    files.set(path, { path, size: sizeOf(entry.Size), ...(sha256 ? { sha256 } : {}) })
    if (entry.InCheck === true) inCheck.push(path)
  }
  return { files: [...files.values()], inCheck }
}
