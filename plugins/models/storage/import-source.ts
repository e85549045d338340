import { lstat, opendir, readlink, realpath } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, relative, resolve, sep } from 'node:path'
import type { AdoptedFile, AdoptRequest } from '../../../core/contracts/adopted-files.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { shardNames, storedName, withoutShardNumber } from '../../../core/models/gguf-file-name.ts'
import {
  checkpointModel,
  type FolderModel,
  type FolderTexts,
  ggufModel,
  ggufModels,
  listed,
  readFolderTexts,
  safetensorsModel,
  singleFiles,
  speechModels
} from '../../../core/models/model-folder.ts'
import { type FileIdentity, isSameFile, pathOfOpened, withRegularFile } from '../../../core/system/regular-file.ts'
import {
  explainReadError,
  isImageModel,
  type ModelSource,
  readDescription,
  readHeader,
  readModelFiles,
  refuseSource as refuse,
  type SourceFile
} from './model-files.ts'

/** Maximum entries of a folder that an import lists. A model's folder has a few dozen. */
const MAX_ENTRIES = 10_000
/** Symbolic links on the way to one file. Linux has the same limit. */
const MAX_LINKS = 40

/** A file that the import may read. */
interface FoundFile extends FileIdentity {
  /** Absolute, without symbolic links. */
  source: string
  /** The path of the opened file, if the system reports it. */
  opened?: string
  size: number
}

/** The part of the machine's disk that an import may read. */
export interface ImportAccess {
  /** Resolves symbolic links. @throws CorralError `path_not_allowed`, whether or not anything is there */
  locate(path: string): Promise<string>
  /** Opens the regular file at a path to identify it. @throws as `locate` does, and `invalid_request` */
  find(path: string): Promise<FoundFile>
}

/** For the user who runs the server: everything that this user can read. */
export const EVERYWHERE: ImportAccess = {
  locate: path => realpath(path),
  find: async path => await identify(await realpath(path))
}

/** Everything for the private socket and corral itself, otherwise only what is below `roots`. */
export const importAccess = (caller: Caller | undefined, roots: readonly string[]): ImportAccess =>
  caller && !caller.isLocal ? within(roots) : EVERYWHERE

function within(named: readonly string[]): ImportAccess {
  /** Follows links one by one, so that it never reveals whether something outside the roots exists. */
  async function locate(path: string): Promise<string> {
    // Compare as text first: a path outside is refused before the disk is touched.
    if (!named.some(root => stepsBelow(root, path))) throw notAllowed(path, named)
    const roots = await realRoots(named)
    let place = findPlace(path, roots)
    let links = 0
    while (place && place.steps.length > 0) {
      const [step, ...rest] = place.steps as [string, ...string[]]
      const next = join(place.at, step)
      if (!(await lstat(next)).isSymbolicLink()) {
        place = { at: next, steps: rest }
        continue
      }
      if (++links > MAX_LINKS) throw refuse(`${path} leads through more than ${MAX_LINKS} symbolic links.`)
      const target = findPlace(resolve(place.at, await readlink(next)), roots)
      place = target && { at: target.at, steps: [...target.steps, ...rest] }
    }
    if (!place) throw notAllowed(path, named)
    return place.at
  }

  /** A folder may be swapped for a link between the check and the opening, so check the file that was opened. */
  async function isBelow(path: string, { opened, ...found }: FoundFile): Promise<boolean> {
    if (opened !== undefined) return (await realRoots(named)).some(({ real }) => stepsBelow(real, opened) !== undefined)
    const again = await locate(path)
    return again === found.source && isSameFile(await lstat(again, { bigint: true }), found)
  }

  return {
    locate,
    async find(path) {
      const opened = await identify(await locate(path))
      if (!(await isBelow(path, opened))) throw notAllowed(path, named)
      return opened
    }
  }
}

const identify = (source: string): Promise<FoundFile> =>
  withRegularFile(source, async file => {
    const { dev, ino, size } = await file.stat({ bigint: true })
    const opened = await readlink(pathOfOpened(file, source)).catch(() => undefined)
    return { source, size: Number(size), dev, ino, ...(opened !== undefined && { opened }) }
  })

async function realRoots(named: readonly string[]) {
  const roots: { named: string; real: string }[] = []
  for (const root of named) {
    // A root that does not exist, for example on an unmounted disk, has nothing to import.
    const real = await realpath(root).catch(() => undefined)
    if (real !== undefined) roots.push({ named: root, real })
  }
  return roots
}

/** Returns a folder without symbolic links in its path, and the steps from there. */
function findPlace(path: string, roots: Awaited<ReturnType<typeof realRoots>>) {
  for (const { named, real } of roots) {
    const steps = stepsBelow(real, path) ?? stepsBelow(named, path)
    if (steps) return { at: real, steps }
  }
  return undefined
}

/** Returns the steps from a folder to a path in it, or undefined if the path is outside. Compares text only. */
function stepsBelow(folder: string, path: string): string[] | undefined {
  const way = relative(folder, resolve(path))
  if (way === '..' || way.startsWith(`..${sep}`) || isAbsolute(way)) return undefined
  return way.split(sep).filter(step => step !== '')
}

function notAllowed(path: string, roots: readonly string[]): CorralError {
  const allowed =
    roots.length === 0 ? 'storage.import_roots names none' : `storage.import_roots names ${roots.join(', ')}`
  return new CorralError(
    'path_not_allowed',
    `${path} is not in a folder that models may be imported from over the network: ${allowed}. Put the model there, add ` +
      'its folder to storage.import_roots in config.yaml, or import it with "corral import" as the user who runs the ' +
      'server, on its machine.',
    { param: 'path' }
  )
}

const MAX_SUBFOLDERS = 16

/**
 * Inspects a path, chooses the files that belong to the model, and reads their headers.
 * @param variant label for the model; by default the files' own
 * @throws CorralError `invalid_request` naming the path and what is wrong with it; `path_not_allowed`
 */
export async function inspectSource(
  named: string,
  variant?: string,
  access: ImportAccess = EVERYWHERE
): Promise<ModelSource> {
  // Node.js itself writes paths of Windows in this form if they are long, and cannot read it for the root of a drive.
  const path = named.replace(/^\\\\\?\\(?=[A-Za-z]:\\)/, '')
  requireAbsolute(path)
  try {
    const found = await lstat(await access.locate(path))
    if (!found.isDirectory() && !found.isFile()) {
      throw refuse(`${path} is neither a file nor a folder. Name a GGUF file or a model folder.`)
    }
    const isSafetensors = found.isFile() && /\.safetensors$/i.test(path)
    if (isSafetensors && !(await isImageModel(await access.find(path)))) {
      throw refuse(`${path} is a part of a SafeTensors model. Name its folder: ${dirname(path)}`)
    }
    const folder = found.isFile() ? dirname(path) : path
    const names = await folderFiles(folder, access)
    // The path may differ in case from the name, on Windows and macOS.
    const isNamed = (name: string) => name.toLowerCase() === basename(path).toLowerCase()
    const own = names.includes(basename(path)) ? basename(path) : (names.find(isNamed) ?? basename(path))
    const read = async (name: string) => await readHeader(await access.find(join(folder, name)))
    const single = await singleFiles(found.isFile() ? [own] : names, names, read)
    const model = isSafetensors
      ? checkpointModel(own)
      : found.isFile()
        ? (speechModels(names).find(({ files }) => files[0]!.path === own) ?? ggufModel(own, names, single))
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
  const models = [...ggufModels(names, single), ...speechModels(names)]
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
    return { source: join(folder, path), path: format === 'safetensors' ? path : ggufName(path), role }
  })
}

/** Lists the files of a folder (following links) and of its numbered subfolders, as relative names. */
async function folderFiles(folder: string, access: ImportAccess): Promise<string[]> {
  const names: string[] = []
  const subfolders: string[] = []
  const search = async (prefix: string) => {
    let count = 0
    for await (const entry of await opendir(await access.locate(join(folder, prefix)))) {
      if (++count > MAX_ENTRIES) {
        throw refuse(`${folder} has more than ${MAX_ENTRIES} files. Name the model's own file or folder.`)
      }
      const path = prefix + entry.name
      const isLink = entry.isSymbolicLink()
      if (entry.isFile() || (isLink && (await leadsToFile(join(folder, path), access)))) names.push(path)
      // sentence-transformers puts pooling and dense modules in 1_Pooling, 2_Dense, …
      else if (prefix === '' && entry.isDirectory() && /^\d+_\w+$/.test(path)) subfolders.push(`${path}/`)
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
    return { format, label: label ?? metadata.quantization ?? format.toUpperCase(), files: found, metadata }
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
