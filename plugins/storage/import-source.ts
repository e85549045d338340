import { readdir, readFile, realpath, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { CorralError, isSystemError, messageOf } from '../../core/errors.ts'
import type { ModelMetadata, StoredFile } from '../../core/services.ts'
import { type GgufFile, readGguf } from './gguf-file.ts'
import { ggufMetadata, ggufPurpose } from './gguf-metadata.ts'
import { type ImportPlan, planFolder, planGgufFile } from './import-plan.ts'
import { ggufLabel } from './quantization-label.ts'
import { readSafetensors } from './safetensors-file.ts'
import { safetensorsMetadata } from './safetensors-metadata.ts'

/** A file to be taken into the store. */
export interface SourceFile {
  /** Absolute, without symbolic links. */
  source: string
  path: string
  role: StoredFile['role']
  /** Bytes. */
  size: number
}

/** A model that was found on disk and is whole, as far as its headers tell. */
export interface ImportSource {
  format: 'gguf' | 'safetensors'
  label: string
  files: SourceFile[]
  metadata: ModelMetadata
}

/** Texts that describe a model are read whole; nothing of this size is one. */
const MAX_DESCRIPTION = 64_000_000
const MAX_SUBFOLDERS = 16

const refuse = (message: string, cause?: unknown) =>
  new CorralError('invalid_request', message, { param: 'path', cause })

/**
 * Looks at what a path names, decides which files belong to the model, and reads their headers.
 * @param variant label that the model is to have; the files' own one otherwise
 * @throws CorralError `invalid_request` naming the path and what is wrong with it
 */
export async function inspectSource(path: string, variant?: string): Promise<ImportSource> {
  if (!isAbsolute(path) || path.includes('\0')) {
    throw refuse(
      `${JSON.stringify(path)} is not an absolute path. Name a file or folder of the machine corral runs on.`
    )
  }
  try {
    const found = await stat(path)
    if (found.isDirectory()) {
      const names = await folderFiles(path)
      return await read(path, planFolder(path, names, await weightsInIndex(path, names), variant), variant)
    }
    if (!found.isFile()) throw refuse(`${path} is neither a file nor a folder. Name a GGUF file or a model folder.`)
    if (/\.safetensors$/i.test(path)) {
      throw refuse(`${path} is a part of a SafeTensors model. Name its folder: ${dirname(path)}`)
    }
    const names = await folderFiles(dirname(path))
    return await read(dirname(path), planGgufFile(dirname(path), basename(path), names), variant)
  } catch (error) {
    throw explained(path, error)
  }
}

function explained(path: string, error: unknown): unknown {
  if (isSystemError(error, 'ENOENT', 'ENOTDIR')) {
    return refuse(`There is no ${error.path ?? path} on the machine corral runs on. Check the path.`, error)
  }
  if (isSystemError(error, 'EACCES', 'EPERM')) {
    return refuse(`corral may not read ${error.path ?? path}. Let its user read the file and enter its folders.`, error)
  }
  if (isSystemError(error, 'ELOOP', 'ENAMETOOLONG', 'EIO')) {
    return refuse(`${error.path ?? path} cannot be read: ${messageOf(error)}.`, error)
  }
  return error
}

/** The regular files of a folder (symbolic links followed) and of its numbered subfolders, as relative names. */
async function folderFiles(folder: string): Promise<string[]> {
  const names: string[] = []
  const subfolders: string[] = []
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    if (entry.isFile()) names.push(entry.name)
    else if (entry.isSymbolicLink() && (await isFile(join(folder, entry.name)))) names.push(entry.name)
    // sentence-transformers keeps pooling and dense modules in 1_Pooling, 2_Dense, …
    else if (entry.isDirectory() && /^\d+_\w+$/.test(entry.name)) subfolders.push(entry.name)
  }
  for (const subfolder of subfolders.slice(0, MAX_SUBFOLDERS)) {
    for (const name of await readdir(join(folder, subfolder))) {
      if (await isFile(join(folder, subfolder, name))) names.push(`${subfolder}/${name}`)
    }
  }
  return names.sort()
}

async function isFile(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile()
  } catch (error) {
    // A link that leads nowhere is as good as no file: planning says what is missing.
    if (isSystemError(error, 'ENOENT', 'ELOOP', 'EACCES')) return false
    throw error
  }
}

async function read(folder: string, plan: ImportPlan, variant: string | undefined): Promise<ImportSource> {
  const files: SourceFile[] = []
  for (const planned of plan.files) {
    const source = await realpath(join(folder, planned.source))
    const { size } = await stat(source)
    files.push({ source, path: planned.path, role: planned.role, size })
  }
  const metadata = plan.format === 'gguf' ? await readGgufModel(plan, files) : await readSafetensorsModel(folder, files)
  return { format: plan.format, label: variant ?? metadata.quantization ?? 'GGUF', files, metadata }
}

async function readGgufModel(plan: ImportPlan, files: SourceFile[]): Promise<ModelMetadata> {
  const shards: GgufFile[] = []
  let projector: GgufFile | undefined
  for (const file of files) {
    const gguf = await readGguf(file.source)
    const purpose = ggufPurpose(gguf)
    if (file.role === 'projector') {
      if (purpose !== 'projector') throw refuse(`${file.source} is named as a projector but is none. Rename it.`)
      projector = gguf
    } else {
      if (purpose !== 'model') throw refuse(NOT_A_MODEL[purpose](file.source))
      shards.push(gguf)
    }
  }
  const source = files[0]!.source
  if (shards.every(shard => shard.tensorCount === 0)) {
    throw refuse(`${source} holds no weights (it is a vocabulary only). Name a file that holds the whole model.`)
  }
  checkShards(source, shards)
  // The name before links were followed: caches of hubs keep the content under its digest.
  const fileType = shards[0]!.metadata['general.file_type']
  return ggufMetadata(shards, ggufLabel(plan.files[0]!.source, fileType), projector)
}

const NOT_A_MODEL = {
  projector: (path: string) =>
    `${path} is a projector, which a model uses to see or hear. Import the model's own file; a projector beside it is taken along.`,
  adapter: (path: string) => `${path} is a LoRA adapter, no whole model. Merge it into its base model first.`,
  imatrix: (path: string) => `${path} holds data for quantization (an importance matrix), no model.`
}

function checkShards(path: string, shards: GgufFile[]): void {
  const { metadata } = shards[0]!
  const count = Number(metadata['split.count'] ?? 1)
  if (count > 1 && shards.length !== count) {
    throw refuse(
      `${path} is one of ${count} shards, but its name is not of the form <name>-00001-of-${String(count).padStart(5, '0')}.gguf, ` +
        'by which the others are found. Give all shards their original names.'
    )
  }
  const tensors = shards.reduce((sum, shard) => sum + shard.tensorCount, 0)
  const expected = Number(metadata['split.tensors.count'] ?? tensors)
  if (expected !== tensors) {
    throw refuse(
      `The shards of ${path} do not belong together: they hold ${tensors} tensors, the first one names ${expected}. ` +
        'Download them again.'
    )
  }
}

async function readSafetensorsModel(folder: string, files: SourceFile[]): Promise<ModelMetadata> {
  const weights = []
  for (const file of files) if (file.role === 'model') weights.push(await readSafetensors(file.source))
  const has = (path: string) => files.some(file => file.path === path)
  return safetensorsMetadata(
    {
      config: await readJson(join(folder, 'config.json')),
      tokenizerConfig: has('tokenizer_config.json') ? await readJson(join(folder, 'tokenizer_config.json')) : undefined,
      chatTemplate: has('chat_template.jinja') ? await readDescription(join(folder, 'chat_template.jinja')) : undefined,
      isSentenceTransformer: has('modules.json')
    },
    weights
  )
}

async function weightsInIndex(folder: string, names: string[]): Promise<string[] | undefined> {
  const name = 'model.safetensors.index.json'
  if (!names.includes(name)) return undefined
  const { weight_map: map } = await readJson(join(folder, name))
  const weights = map && typeof map === 'object' ? [...new Set(Object.values(map))] : []
  if (weights.length === 0 || !weights.every(weight => typeof weight === 'string' && /^[^/\\]+$/.test(weight))) {
    throw refuse(`${join(folder, name)} names no weights beside it. Download it again.`)
  }
  return weights as string[]
}

async function readJson(path: string): Promise<Record<string, unknown>> {
  const text = await readDescription(path)
  try {
    const value = JSON.parse(text)
    if (value && typeof value === 'object') return value
  } catch (error) {
    throw refuse(`${path} is damaged: it is no JSON (${messageOf(error)}). Download it again.`, error)
  }
  throw refuse(`${path} is damaged: it holds no JSON object. Download it again.`)
}

async function readDescription(path: string): Promise<string> {
  const { size } = await stat(path)
  if (size > MAX_DESCRIPTION) throw refuse(`${path} is too large (${size} bytes) to describe a model.`)
  return readFile(path, 'utf8')
}
