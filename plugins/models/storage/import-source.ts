import { lstat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join } from 'node:path'
import type { AdoptedFile, AdoptRequest } from '../../../core/contracts/adopted-files.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { shardNames, storedName, withoutShardNumber } from '../../../core/models/gguf-file-name.ts'
import {
  type FolderModel,
  type FolderTexts,
  ggufModel,
  ggufModels,
  listed,
  readFolderTexts,
  safetensorsModel,
  singleFiles
} from '../../../core/models/model-folder.ts'
import { EVERYWHERE, type ImportAccess, listEntries } from './import-access.ts'
import {
  explainReadError,
  type ModelSource,
  readDescription,
  readHeader,
  readModelFiles,
  refuseSource as refuse,
  type SourceFile
} from './model-files.ts'

const MAX_SUBFOLDERS = 16

/**
 * Inspects a path, chooses the files that belong to the model, and reads their headers.
 * @param variant label for the model; by default the files' own
 * @throws CorralError `invalid_request` naming the path and what is wrong with it; `path_not_allowed`
 */
export async function inspectSource(
  path: string,
  variant?: string,
  access: ImportAccess = EVERYWHERE
): Promise<ModelSource> {
  requireAbsolute(path)
  try {
    const found = await lstat(await access.locate(path))
    if (!found.isDirectory() && !found.isFile()) {
      throw refuse(`${path} is neither a file nor a folder. Name a GGUF file or a model folder.`)
    }
    if (found.isFile() && /\.safetensors$/i.test(path)) {
      throw refuse(`${path} is a part of a SafeTensors model. Name its folder: ${dirname(path)}`)
    }
    const folder = found.isFile() ? dirname(path) : path
    const names = await folderFiles(folder, access)
    const read = async (name: string) => await readHeader(await access.find(join(folder, name)))
    const single = await singleFiles(found.isFile() ? [basename(path)] : names, names, read)
    const model = found.isFile()
      ? ggufModel(basename(path), names, single)
      : chooseModel(folder, names, await readTexts(folder, names, access), variant, single)
    return await inspectFiles({ format: model.format, label: variant, files: toStoredFiles(folder, model) }, access)
  } catch (error) {
    throw explainReadError(path, error)
  }
}

/**
 * Chooses the model to import from a folder. SafeTensors weights take precedence, since GGUF files can be named
 * individually.
 * @param names the folder's files; files of subfolders with forward slashes
 * @param variant label in the model's name, which selects one of several quantizations
 * @param single files that are not shards, whatever their names
 * @throws CorralError `invalid_request` listing the choices
 */
export function chooseModel(
  folder: string,
  names: string[],
  texts: FolderTexts,
  variant?: string,
  single?: ReadonlySet<string>
): FolderModel {
  const models = ggufModels(names, single)
  const wanted = models.filter(({ label }) => variant && label?.toLowerCase() === variant.toLowerCase())
  if (wanted.length === 1) return wanted[0]!
  const whole = models.filter(({ problem }) => !problem)
  const choice = safetensorsModel(names, texts) ?? whole[0] ?? models[0]
  if (!choice) {
    throw refuse(
      `${folder} has no model: neither a GGUF file nor SafeTensors weights (config.json with model*.safetensors).`
    )
  }
  if (choice.format === 'safetensors' || whole.length <= 1) return choice
  throw refuse(
    `${folder} has ${whole.length} models: ${listed(whole.map(({ files }) => files[0]!.path))}. Name the file to ` +
      'import, or add its label to the name, as in <owner>/<name>:Q4_K_M.'
  )
}

/** Lists a model's files under names that every file system accepts. @throws CorralError `invalid_request` */
export function toStoredFiles(folder: string, { format, files, problem }: FolderModel): AdoptedFile[] {
  if (problem) throw refuse(`The model in ${folder} cannot be imported. ${problem}`)
  // If a single file had a shard's name, the engine would look for the other shards.
  const isSingle = files.filter(({ role }) => role === 'model').length === 1
  const ggufName = (path: string) => storedName(isSingle ? withoutShardNumber(path) : path)
  return files.map(({ path, role }) => {
    return { source: join(folder, path), path: format === 'gguf' ? ggufName(path) : path, role }
  })
}

/** Lists the files of a folder (following links) and of its numbered subfolders, as relative names. */
async function folderFiles(folder: string, access: ImportAccess): Promise<string[]> {
  const names: string[] = []
  const subfolders: string[] = []
  const search = async (prefix: string) => {
    for (const { name, kind } of await listEntries(await access.locate(join(folder, prefix)))) {
      const path = prefix + name
      if (kind === 'file' || (kind === 'link' && (await leadsToFile(join(folder, path), access)))) names.push(path)
      // sentence-transformers puts pooling and dense modules in 1_Pooling, 2_Dense, …
      else if (prefix === '' && kind === 'folder' && /^\d+_\w+$/.test(name)) subfolders.push(`${name}/`)
    }
  }
  await search('')
  for (const subfolder of subfolders.slice(0, MAX_SUBFOLDERS)) await search(subfolder)
  return names.sort()
}

async function leadsToFile(link: string, access: ImportAccess): Promise<boolean> {
  try {
    return (await lstat(await access.locate(link))).isFile()
  } catch (error) {
    // The link leads outside the roots. It counts as a file, and is refused if the model needs it.
    if (error instanceof CorralError) return error.code === 'path_not_allowed'
    // A dangling link is treated as missing. Planning reports missing files.
    if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'ELOOP', 'EACCES')) return false
    throw error
  }
}

const readTexts = (folder: string, names: string[], access: ImportAccess) =>
  readFolderTexts(async name =>
    names.includes(name) ? await readDescription(await access.find(join(folder, name))) : undefined
  )

function requireAbsolute(path: string): void {
  if (isAbsolute(path) && !path.includes('\0')) return
  throw refuse(`${JSON.stringify(path)} is not an absolute path. Name a file or folder of the machine corral runs on.`)
}

/** A relative path with forward slashes that every file system accepts, and not one of the store's own names. */
const STORED_PATH = /^(?!converted(\/|$))(?!.*\.\.)(?!.*[\p{Cc}\\:*?"<>|])[^/.-][^/]*(\/[^/.-][^/]*)*$/iu
/** llama-server reads comma-separated lists of files. */
const ENGINE_PATH = /^[A-Za-z0-9._+/-]+$/

/** Reads the headers of chosen files, and checks that they form one complete model. @throws as `inspectSource` */
export async function inspectFiles(
  { format, label, files }: Pick<AdoptRequest, 'format' | 'label' | 'files'>,
  access: ImportAccess = EVERYWHERE
): Promise<ModelSource> {
  const seen = new Set<string>()
  for (const { path, role } of files) {
    if (!STORED_PATH.test(path) || path.length > 255 || (role !== 'other' && !ENGINE_PATH.test(path))) {
      throw refuse(`${JSON.stringify(path)} cannot be a file's name in the store.`)
    }
    if (seen.has(path.toLowerCase())) throw refuse(`Two of the files would have the name ${path} in the store.`)
    seen.add(path.toLowerCase())
  }
  const weights = files.filter(file => file.role === 'model')
  if (weights.length === 0) throw refuse('There is no model among these files. Name its weights too.')
  if (format === 'gguf') checkShardNames(weights.map(file => file.path))
  const found: SourceFile[] = []
  try {
    // The store puts model files first.
    for (const file of [...weights, ...files.filter(file => file.role !== 'model')]) {
      requireAbsolute(file.source)
      found.push({ ...file, ...(await access.find(file.source)) })
    }
    // By the stored name, because hub caches name the content by its digest.
    const metadata = await readModelFiles(format, found, weights[0]!.path)
    return { format, label: label ?? metadata.quantization ?? 'GGUF', files: found, metadata }
  } catch (error) {
    throw explainReadError(weights[0]!.source, error)
  }
}

/** llama.cpp receives the first shard and derives the names of the others. */
function checkShardNames(paths: string[]): void {
  if (paths.length === 1 || shardNames(paths[0]!).join() === paths.join()) return
  throw refuse(
    `${paths.join(', ')} are not the shards of one model, in their order: they are named ` +
      `<name>-00001-of-${String(paths.length).padStart(5, '0')}.gguf and so on.`
  )
}
