import type { Dirent } from 'node:fs'
import { mkdir, readdir, readFile, rm, rmdir, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { isSystemError, messageOf } from '../../core/errors.ts'
import { type Manifest, parseManifest, withoutRevisions } from './manifest.ts'
import { discardFolder, MANIFEST_FILE, REVISION_MARK, removeEmptyFolders, STAGING_FOLDER } from './model-folders.ts'

export interface FoundModel {
  directory: string
  manifest: Manifest
}

/** Files read at the same time: enough to hide a slow disk's latency. */
const PARALLEL = 32

/**
 * Reads all manifests, and clears away what a crash left behind: staging folders, revisions that no manifest names, and
 * half-written manifests. A manifest that cannot be used is left as it is, with all beside it, and logged.
 */
export async function scanModels(models: string, log: FastifyBaseLogger): Promise<FoundModel[]> {
  await mkdir(models, { recursive: true })
  const folders: string[] = []
  for (const owner of await subfolders(models, log)) {
    if (basename(owner) === STAGING_FOLDER) await clearStaging(owner)
    else if (!basename(owner).startsWith('.')) folders.push(...(await subfolders(owner, log)))
  }
  const found: (FoundModel | undefined)[] = []
  let next = 0
  const worker = async () => {
    while (next < folders.length) {
      const index = next++
      found[index] = await scanModel(models, folders[index]!, log)
    }
  }
  await Promise.all(Array.from({ length: PARALLEL }, worker))
  return withoutDoubles(
    found.filter(model => model !== undefined),
    log
  )
}

async function subfolders(folder: string, log: FastifyBaseLogger): Promise<string[]> {
  const folders: string[] = []
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) folders.push(path)
    else if (entry.isSymbolicLink()) {
      log.warn(`${path} is skipped: it is a symbolic link, and models are kept inside the models folder only`)
    }
  }
  return folders.sort()
}

async function clearStaging(staging: string): Promise<void> {
  for (const name of await readdir(staging)) await rm(join(staging, name), { recursive: true, force: true })
}

async function scanModel(models: string, folder: string, log: FastifyBaseLogger): Promise<FoundModel | undefined> {
  const entries = await readdir(folder, { withFileTypes: true })
  const skip = (why: string) => {
    log.warn(`The model in ${folder} is skipped: ${join(folder, MANIFEST_FILE)} cannot be used: ${why}`)
    return undefined
  }
  const present = entries.find(entry => entry.name === MANIFEST_FILE)
  let manifest: Manifest | undefined
  if (present) {
    if (!present.isFile()) return skip('it is no regular file')
    try {
      const parsed = parseManifest(await readFile(join(folder, MANIFEST_FILE), 'utf8'))
      if (typeof parsed === 'string') return skip(parsed)
      manifest = parsed
    } catch (error) {
      return skip(messageOf(error))
    }
    const inFolder = `${basename(dirname(folder))}/${basename(folder)}`
    const inManifest = `${manifest.owner}/${manifest.name}`
    if (inFolder.toLowerCase() !== inManifest.toLowerCase()) return skip(`it is the manifest of ${inManifest}`)
  }
  try {
    await clearLeftOvers(models, folder, entries, manifest)
  } catch (error) {
    log.warn(error, `Left-overs of an interrupted import or removal in ${folder} cannot be deleted`)
  }
  if (!manifest) return undefined

  const folders = new Set(entries.filter(entry => entry.isDirectory()).map(entry => entry.name))
  const lost = manifest.variants.map(variant => variant.revision).filter(revision => !folders.has(revision))
  if (lost.length === 0) return { directory: folder, manifest }
  const rest = withoutRevisions(manifest, new Set(lost))
  if (!rest) return skip(`the folders of its files are gone: ${lost.join(', ')}`)
  log.warn(`${folder} has lost the variants whose files lay in ${lost.join(', ')}`)
  return { directory: folder, manifest: rest }
}

/** @param manifest undefined where the model was never finished, or its removal was interrupted */
async function clearLeftOvers(
  models: string,
  folder: string,
  entries: Dirent[],
  manifest: Manifest | undefined
): Promise<void> {
  const named = new Set(manifest?.variants.map(variant => variant.revision))
  for (const entry of entries) {
    const path = join(folder, entry.name)
    if (entry.isDirectory() && entry.name === `${MANIFEST_FILE}.lock`) await rmdir(path)
    else if (entry.isDirectory() && !named.has(entry.name) && (await isMarked(path))) await discardFolder(models, path)
    else if (entry.isFile() && /^manifest\.json\.\d+$/.test(entry.name)) await rm(path)
  }
  if (!manifest) await removeEmptyFolders(folder)
}

async function isMarked(folder: string): Promise<boolean> {
  try {
    return (await stat(join(folder, REVISION_MARK))).isFile()
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return false
    throw error
  }
}

/** One name may lie there in two spellings, when somebody copied folders by hand: the first one counts. */
function withoutDoubles(models: FoundModel[], log: FastifyBaseLogger): FoundModel[] {
  const byKey = new Map<string, FoundModel>()
  for (const model of models) {
    const key = `${model.manifest.owner}/${model.manifest.name}`.toLowerCase()
    const first = byKey.get(key)
    if (first) log.warn(`${model.directory} is skipped: ${first.directory} is the same name in another case`)
    else byKey.set(key, model)
  }
  return [...byKey.values()]
}
