import { join } from 'node:path'
import { type CacheDisk, inspectFile } from './cache-disk.ts'
import type { CacheFile } from './candidate.ts'
import type { CachedRepository } from './repository.ts'

/** Reads a folder of a model's files, with what is needed to choose among them. */
export async function readModelFolder(
  folder: string,
  { owner, name }: Pick<CachedRepository, 'owner' | 'name'>,
  disk: CacheDisk
): Promise<CachedRepository> {
  const files: CacheFile[] = []
  for (const path of await disk.files(folder)) {
    files.push(await inspectFile(path, join(folder, ...path.split('/'))))
  }
  const textOf = async (name: string) =>
    files.some(({ path, content }) => path === name && content === 'other')
      ? await disk.text(join(folder, name))
      : undefined
  const texts = { config: await textOf('config.json'), index: await textOf('model.safetensors.index.json') }
  return { owner, name, folder, files, texts }
}
