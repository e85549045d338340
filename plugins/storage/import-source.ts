import { readdir, realpath, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join } from 'node:path'
import type { AdoptRequest } from '../../core/contracts/adopted-files.ts'
import { isSystemError } from '../../core/errors.ts'
import { type ImportPlan, planFolder, planGgufFile } from './import-plan.ts'
import {
  explainedReading,
  type ModelSource,
  readJson,
  readModelFiles,
  refuseSource as refuse,
  refuseSource,
  type SourceFile
} from './model-files.ts'

const MAX_SUBFOLDERS = 16

/**
 * Looks at what a path names, decides which files belong to the model, and reads their headers.
 * @param variant label that the model is to have; the files' own one otherwise
 * @throws CorralError `invalid_request` naming the path and what is wrong with it
 */
export async function inspectSource(path: string, variant?: string): Promise<ModelSource> {
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
    throw explainedReading(path, error)
  }
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

async function read(folder: string, plan: ImportPlan, variant: string | undefined): Promise<ModelSource> {
  const files: SourceFile[] = []
  for (const planned of plan.files) {
    const source = await realpath(join(folder, planned.source))
    const { size } = await stat(source)
    files.push({ source, path: planned.path, role: planned.role, size })
  }
  // The name before links were followed: caches of hubs keep the content under its digest.
  const metadata = await readModelFiles(plan.format, files, plan.files[0]!.source)
  return { format: plan.format, label: variant ?? metadata.quantization ?? 'GGUF', files, metadata }
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

/** Relative, with forward slashes, of what all file systems accept; never what the store itself keeps beside files. */
const STORED_PATH = /^(?!converted(\/|$))(?!.*\.\.)(?!.*[\p{Cc}\\:*?"<>|])[^/.-][^/]*(\/[^/.-][^/]*)*$/iu
/** llama-server reads lists of files, with commas between. */
const ENGINE_PATH = /^[A-Za-z0-9._+/-]+$/
/** How llama.cpp finds the other shards of a GGUF model. */
const SHARD = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/i

/**
 * Reads the headers of files that were chosen already, and checks that they are one whole model.
 * @throws CorralError `invalid_request` naming the file and what is wrong with it
 */
export async function inspectFiles({ format, label, files }: AdoptRequest): Promise<ModelSource> {
  checkPaths(files)
  const weights = files.filter(file => file.role === 'model')
  if (weights.length === 0) throw refuseSource('There is no model among these files. Name its weights too.')
  const found: SourceFile[] = []
  // Model files first, as everywhere in the store.
  for (const file of [...weights, ...files.filter(file => file.role !== 'model')]) {
    if (!isAbsolute(file.source) || file.source.includes('\0')) {
      throw refuseSource(`${JSON.stringify(file.source)} is not an absolute path.`)
    }
    try {
      const source = await realpath(file.source)
      const facts = await stat(source)
      if (!facts.isFile()) throw refuseSource(`${file.source} is no regular file.`)
      found.push({ ...file, source, size: facts.size })
    } catch (error) {
      throw explainedReading(file.source, error)
    }
  }
  if (format === 'gguf') checkShardNames(weights.map(file => file.path))
  try {
    const metadata = await readModelFiles(format, found, weights[0]!.path)
    return { format, label: label ?? metadata.quantization ?? 'GGUF', files: found, metadata }
  } catch (error) {
    throw explainedReading(weights[0]!.source, error)
  }
}

function checkPaths(files: AdoptRequest['files']): void {
  const seen = new Set<string>()
  for (const { path, role } of files) {
    if (!STORED_PATH.test(path) || path.length > 255 || (role !== 'other' && !ENGINE_PATH.test(path))) {
      throw refuseSource(`${JSON.stringify(path)} cannot be a file's name in the store.`)
    }
    if (seen.has(path.toLowerCase())) throw refuseSource(`Two of the files would have the name ${path} in the store.`)
    seen.add(path.toLowerCase())
  }
}

/** llama.cpp is given the first shard and makes the names of the others up from it. */
function checkShardNames(paths: string[]): void {
  if (paths.length === 1) return
  const parts = paths.map(path => SHARD.exec(path))
  const inOrder = parts.every(
    (part, index) =>
      part && part[1] === parts[0]![1] && Number(part[2]) === index + 1 && Number(part[3]) === paths.length
  )
  if (inOrder) return
  throw refuseSource(
    `${paths.join(', ')} are not the shards of one model, in their order: they are named ` +
      `<name>-00001-of-${String(paths.length).padStart(5, '0')}.gguf and so on.`
  )
}
