import { join } from 'node:path'
import type { Downloads } from '../contracts/downloads.ts'
import type { Origin } from '../contracts/models.ts'
import type { StoredFile, StoredVariant } from '../contracts/storage.ts'
import { CorralError } from '../errors.ts'
import { fileSize } from '../system/folder-names.ts'
import { bareName, type ModelName } from './model-name.ts'

/** The variant of another origin that prevents files with this label from being stored under its name. */
export function conflictingVariant(variants: readonly StoredVariant[], incoming: Origin, label: string) {
  return variants.find(({ origin, isDefault, label: present }) => {
    if (origin.kind === 'made') return isDefault || present.toLowerCase() === label.toLowerCase()
    return origin.kind !== incoming.kind || (origin.kind === 'hub' && origin.from !== incoming.from)
  })
}

/** Whether two sets of files have the same content in the same roles, whatever their names. */
export function haveSameContent(some: readonly StoredFile[], others: readonly StoredFile[]): boolean {
  const contents = (files: readonly StoredFile[]) => files.map(({ role, sha256 }) => `${role} ${sha256}`).sort()
  return contents(some).join() === contents(others).join()
}

/** The origin in words, after "it": `was imported from /models/a.gguf`. */
export function originInWords({ kind, from }: Origin): string {
  return {
    bundled: 'came with corral',
    import: `was imported from ${from}`,
    hub: `was downloaded from ${from}`,
    made: `was made from ${from}`
  }[kind]
}

/** Whether a variant's files still exist: people delete folders by hand, and import or pull again to repair. */
export async function isWhole({ directory, files }: Pick<StoredVariant, 'directory' | 'files'>): Promise<boolean> {
  const found = await Promise.all(files.map(file => fileSize(join(directory, file.path))))
  return found.every((size, index) => size === files[index]!.size)
}

/** Refuses to store another model under a name that is being pulled. @throws CorralError `model_exists` */
export function refuseWhilePulled(downloads: Downloads, name: ModelName): void {
  const bare = bareName(name)
  const going = downloads
    .list()
    .filter(({ state }) => state === 'downloading' || state === 'storing')
    .find(({ model }) => model.toLowerCase().startsWith(`${bare}:`.toLowerCase()))
  if (!going) return
  const advice = `Choose another name, or cancel that pull first with "corral pulls cancel ${going.model}".`
  throw new CorralError('model_exists', `"${bare}" is being pulled from ${going.origin}. ${advice}`, { param: 'model' })
}
