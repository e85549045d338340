import { realpath, stat } from 'node:fs/promises'
import { isAbsolute } from 'node:path'
import type { AdoptRequest } from '../../core/contracts/storage.ts'
import { explainedReading, type ModelSource, readModelFiles, refuseSource, type SourceFile } from './model-files.ts'

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
