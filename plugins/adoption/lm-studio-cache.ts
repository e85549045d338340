import { join } from 'node:path'
import type { CacheDisk } from './cache-disk.ts'
import type { Candidate } from './candidate.ts'
import { readModelFolder } from './model-folder.ts'
import { planRepository } from './repository.ts'

/** The models in a folder of LM Studio's: `<publisher>/<model>/<files>`. */
export async function findLmStudio(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const owner of await disk.subfolders(folder)) {
    for (const name of await disk.subfolders(join(folder, owner))) {
      candidates.push(...planRepository(await readModelFolder(join(folder, owner, name), { owner, name }, disk)))
    }
  }
  return candidates
}
