import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { errorMessage, isSystemError } from '../core/errors.ts'
import type { ParsedJson } from '../core/system/json-file.ts'
import { MANIFEST_FILE, type Manifest, parseManifest } from '../plugins/models/storage/manifest.ts'

/** The manifest of a stored model, or why it cannot be read. `model` is owner/name. */
export type ReadManifest = ParsedJson<Manifest> & { model: string; directory: string }

/** Reads the manifests in a models folder without the server. */
export async function readManifests(models: string): Promise<ReadManifest[]> {
  const found: ReadManifest[] = []
  for (const owner of (await namesIn(models)).filter(name => !name.startsWith('.'))) {
    for (const name of await namesIn(join(models, owner))) {
      const directory = join(models, owner, name)
      const place = { model: `${owner}/${name}`, directory }
      try {
        found.push({ ...place, ...parseManifest(await readFile(join(directory, MANIFEST_FILE), 'utf8')) })
      } catch (error) {
        if (!isSystemError(error, 'ENOENT', 'ENOTDIR')) found.push({ ...place, fault: errorMessage(error) })
      }
    }
  }
  return found
}

/** Lists the folders in a folder, which may be missing. */
export async function namesIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(error => {
    if (!isSystemError(error, 'ENOENT')) throw error
    return []
  })
  return entries.flatMap(entry => (entry.isDirectory() ? [entry.name] : [])).sort()
}
