import { readlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { isSystemError } from '../../../core/errors.ts'
import { readGgufHeader } from '../../../core/models/gguf-file.ts'
import { withoutShardNumber } from '../../../core/models/gguf-file-name.ts'
import {
  type FolderModel,
  type FolderTexts,
  ggufModels,
  readFolderTexts,
  safetensorsModel,
  singleFiles
} from '../../../core/models/model-folder.ts'
import { openRegularFile } from '../../../core/system/regular-file.ts'
import {
  type CacheDisk,
  type CacheFile,
  type Candidate,
  fileProblem,
  toImportedFile,
  validName,
  withoutDuplicates
} from './cache-disk.ts'

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

async function findRepository(folder: string, names: Names, disk: CacheDisk): Promise<Candidate[]> {
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

/** Returns the commits with downloaded files: first that of `main`, then other references, then the rest. */
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
    // This is not a link: systems without links get the file itself.
    if (isSystemError(error, 'EINVAL', 'UNKNOWN', 'ENOENT', 'EACCES')) return {}
    throw error
  }
}

type Names = { owner: string; name: string }

/** A model's folder in the layout of hubs: any number of quantizations, or SafeTensors weights, or both. */
interface CachedRepository extends Names {
  folder: string
  files: CacheFile[]
  texts: FolderTexts
  /** Files that are not shards, whatever their names. */
  single?: ReadonlySet<string>
}

export function planRepository({ owner, name, folder, files, texts, single }: CachedRepository): Candidate[] {
  const byPath = new Map(files.map(file => [file.path, file]))
  const paths = [...byPath.keys()]
  const title = `${owner}/${name}`
  const models = ggufModels(paths, single)
  const candidates = models.map((model): Candidate => {
    const first = model.files[0]!.path
    // Two models of one quantization in one folder are distinguished by their file names.
    const isAlone = models.every(other => other === model || other.label?.toLowerCase() !== model.label?.toLowerCase())
    return {
      found: `${title}/${first}`,
      name: validName(owner, name, isAlone ? model.label : bareFileName(first)),
      path: join(folder, ...first.split('/')),
      ...planFiles(model, byPath)
    }
  })
  const weights = safetensorsModel(paths, texts)
  if (!weights) return candidates
  return [...candidates, { found: title, name: validName(owner, name), path: folder, ...planFiles(weights, byPath) }]
}

function planFiles({ format, files, problem }: FolderModel, byPath: ReadonlyMap<string, CacheFile>) {
  const isSingle = files.filter(({ role }) => role === 'model').length === 1
  // The store puts the shards of one model in a single folder.
  const ggufName = (path: string) => (isSingle ? withoutShardNumber(path) : path).slice(path.lastIndexOf('/') + 1)
  const fileName = (path: string) => (format === 'gguf' ? ggufName(path) : path)
  const why = problem ?? files.map(({ path }) => fileProblem(byPath.get(path)!, format)).find(Boolean)
  return {
    format,
    files: files.map(({ path, role }) => toImportedFile(byPath.get(path)!, fileName(path), role)),
    ...(why && { problem: why })
  }
}

const bareFileName = (path: string): string =>
  basename(path)
    .replace(/\.gguf(?:\.part.*|-split-.*)?$/i, '')
    .replace(/-\d{5}-of-\d{5}$/, '')

async function readModelFolder(folder: string, names: Names, disk: CacheDisk): Promise<CachedRepository> {
  const files: CacheFile[] = []
  for (const path of await disk.files(folder)) {
    files.push(await disk.file(path, join(folder, ...path.split('/'))))
  }
  const texts = await readFolderTexts(async name =>
    files.some(({ path, content }) => path === name && content === 'other')
      ? await disk.text(join(folder, name))
      : undefined
  )
  const sources = new Map(files.map(({ path, source }) => [path, source]))
  const paths = [...sources.keys()]
  const single = await singleFiles(paths, paths, async path => {
    const file = await openRegularFile(sources.get(path)!)
    return await readGgufHeader(path, file).finally(() => file.close())
  })
  return { ...names, folder, files, texts, single }
}

/** Finds the models in a folder of LM Studio's: `<publisher>/<model>/<files>`. */
export async function findLmStudio(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const owner of await disk.subfolders(folder)) {
    for (const name of await disk.subfolders(join(folder, owner))) {
      candidates.push(...planRepository(await readModelFolder(join(folder, owner, name), { owner, name }, disk)))
    }
  }
  return candidates
}
