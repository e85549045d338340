import { readlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { isSystemError } from '../../../core/errors.ts'
import type { CacheDisk } from './cache-disk.ts'
import { type CacheFile, type Candidate, validName, withoutDuplicates } from './candidate.ts'
import { planRepository, readModelFolder } from './repository.ts'

/** Owner for repositories from the hub's first days, which had none. */
const WITHOUT_OWNER = 'huggingface'

/** Finds the models in a cache of the Hugging Face client, or of llama.cpp, which uses the same layout. */
export async function findHuggingFace(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const entry of await disk.subfolders(folder)) {
    const [kind, first, ...rest] = entry.split('--')
    if (kind !== 'models' || !first) continue
    const names = rest.length === 0 ? { owner: WITHOUT_OWNER, name: first } : { owner: first, name: rest.join('--') }
    candidates.push(...(await findRepository(join(folder, entry), names, disk)))
  }
  return candidates
}

async function findRepository(
  folder: string,
  names: { owner: string; name: string },
  disk: CacheDisk
): Promise<Candidate[]> {
  const found: Candidate[] = []
  for (const commit of await listCommits(folder, disk)) {
    const repository = await readModelFolder(join(folder, 'snapshots', commit), names, disk)
    for (const file of repository.files) Object.assign(file, await readClaimedDigest(repository.folder, file))
    found.push(...planRepository(repository))
  }
  // Older snapshots may have more: llama.cpp fetches each quantization at that day's commit.
  const candidates = withoutDuplicates(found)
  const blobs = candidates.length === 0 ? await disk.entries(join(folder, 'blobs')) : undefined
  if (!blobs?.some(({ name }) => /\.(incomplete|downloadInProgress)$/.test(name))) return candidates
  return [
    {
      found: `${names.owner}/${names.name}`,
      name: validName(names.owner, names.name),
      format: /gguf/i.test(names.name) ? 'gguf' : 'safetensors',
      path: folder,
      files: [],
      problem: 'Its download was not finished. Let the tool that started it finish, or pull the model with corral.'
    }
  ]
}

/** Returns the commits whose files are there: first that of `main`, then other references, then the rest. */
async function listCommits(folder: string, disk: CacheDisk): Promise<string[]> {
  const present = await disk.subfolders(join(folder, 'snapshots'))
  const refs = present.length > 1 ? await disk.files(join(folder, 'refs')) : []
  const named: string[] = []
  for (const ref of [...refs].sort((a, b) => Number(b === 'main') - Number(a === 'main'))) {
    const commit = (await disk.text(join(folder, 'refs', ...ref.split('/'))))?.trim()
    if (commit && present.includes(commit)) named.push(commit)
  }
  return [...new Set([...named, ...present])]
}

/** Returns the digest that a file's first link names. A blob may itself link into a store with other digests. */
async function readClaimedDigest(folder: string, { path }: CacheFile): Promise<Pick<CacheFile, 'claimedSha256'>> {
  try {
    const target = await readlink(join(folder, ...path.split('/')))
    const isDigest = basename(dirname(target)) === 'blobs' && /^[0-9a-f]{64}$/.test(basename(target))
    return isDigest ? { claimedSha256: basename(target) } : {}
  } catch (error) {
    // Not a link: systems without links get the file itself.
    if (isSystemError(error, 'EINVAL', 'UNKNOWN', 'ENOENT', 'EACCES')) return {}
    throw error
  }
}
