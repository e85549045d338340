import type { HubFile } from '../../../core/contracts/downloads.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { sha256Hex } from '../files/etag.ts'
import { isUsablePath, sizeOf } from '../files/listing-path.ts'

export interface CorralListing {
  /** As the other corral spells it. */
  name: string
  /** Each below a folder with its variant's label. */
  files: HubFile[]
  /** Revisions by label. */
  revisions: Record<string, string>
}

/**
 * What another corral says of a model; variants and files that are not as they should be are left out. Undefined when
 * it is no such answer.
 */
export function readCorralListing(body: unknown): CorralListing | undefined {
  if (!isObject(body) || typeof body.name !== 'string' || !Array.isArray(body.variants)) return undefined
  const files: HubFile[] = []
  const revisions: Record<string, string> = {}
  for (const { label, revision, files: listed } of body.variants.filter(isObject)) {
    if (!isUsablePath(label) || label.includes('/') || !isUsablePath(revision) || !Array.isArray(listed)) continue
    revisions[label] = revision
    for (const { path, size, sha256 } of listed.filter(isObject)) {
      const digest = sha256Hex(sha256)
      const inFolder = `${label}/${path}`
      if (digest && isUsablePath(path) && isUsablePath(inFolder)) {
        files.push({ path: inFolder, size: sizeOf(size), sha256: digest })
      }
    }
  }
  return { name: body.name, files, revisions }
}
