import { readdir, realpath, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { isSystemError } from '../../core/errors.ts'
import { type ImportPlan, planFolder, planGgufFile } from './import-plan.ts'
import {
  explainedReading,
  type ModelSource,
  readJson,
  readModelFiles,
  refuseSource as refuse,
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
