import type { FileHandle } from 'node:fs/promises'
import type { AdoptedFile } from '../../../core/contracts/adopted-files.ts'
import type { ModelMetadata } from '../../../core/contracts/models.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../core/models/foreign-start.ts'
import { type GgufFile, readGguf, readGgufHeader } from '../../../core/models/gguf-file.ts'
import type { FileRole } from '../../../core/models/gguf-file-name.ts'
import { ggufPurpose } from '../../../core/models/gguf-purpose.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { type FileIdentity, openRegularFile, readOpened } from '../../../core/system/regular-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { FILL_IN_TOKENS, ggufLabel, ggufMetadata, readSafetensors, safetensorsMetadata } from './model-metadata.ts'

/** A file to take into the store. `source` has no symbolic links. */
export type SourceFile = AdoptedFile & FileIdentity & { size: number }

/** Opens a file that was found before, and fails if another file has replaced it. */
async function reading<T>(found: Found, read: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await openRegularFile(found.source, found)
  try {
    return await read(file)
  } finally {
    await file.close()
  }
}
type Found = FileIdentity & { source: string }

/** A model on disk whose headers show that it is complete. */
export interface ModelSource {
  format: 'gguf' | 'safetensors'
  label: string
  files: SourceFile[]
  metadata: ModelMetadata
}

/** Files that describe a model are read whole. No real one is this large. */
const MAX_DESCRIPTION_BYTES = 64_000_000

export const refuseSource = (message: string, cause?: unknown) =>
  new CorralError('invalid_request', message, { param: 'path', cause })

/** Explains why the system refuses to read a file. Other errors are returned unchanged. */
export function explainReadError(path: string, error: unknown): unknown {
  if (isSystemError(error, 'ENOENT', 'ENOTDIR')) {
    return refuseSource(`There is no ${error.path ?? path} on the machine corral runs on. Check the path.`, error)
  }
  if (isSystemError(error, 'EACCES', 'EPERM')) {
    return refuseSource(
      `corral may not read ${error.path ?? path}. Let its user read the file and enter its folders.`,
      error
    )
  }
  if (isSystemError(error, 'ELOOP', 'EINVAL', 'ENAMETOOLONG', 'EIO')) {
    return refuseSource(`${error.path ?? path} cannot be read: ${errorMessage(error)}.`, error)
  }
  return error
}

/** Reads the headers of a complete model's files. @param files model files first, in the order of their shards */
export function readModelFiles(
  format: 'gguf' | 'safetensors',
  files: SourceFile[],
  named: string
): Promise<ModelMetadata> {
  return format === 'gguf' ? readGgufModel(files, named) : readSafetensorsModel(files)
}

async function readGgufModel(files: SourceFile[], named: string): Promise<ModelMetadata> {
  const shards: GgufFile[] = []
  let projector: GgufFile | undefined
  for (const file of files) {
    if (file.role === 'other') continue
    const gguf = await reading(file, opened => readGguf(file.source, opened, FILL_IN_TOKENS))
    const purpose = ggufPurpose(gguf.metadata)
    if (file.role === 'draft') continue
    if (file.role === 'projector') {
      if (purpose !== 'projector')
        throw refuseSource(`${file.source} is named like a projector but is not one. Rename it.`)
      projector = gguf
    } else {
      const refusal = NOT_A_MODEL[purpose]
      if (refusal) throw refuseSource(refusal(file.source))
      shards.push(gguf)
    }
  }
  const { source } = files[0]!
  if (shards.every(shard => shard.tensorCount === 0)) {
    throw refuseSource(`${source} has no weights (only a vocabulary). Name a file with the whole model.`)
  }
  checkShards(source, shards)
  return ggufMetadata(shards, ggufLabel(named, shards[0]!.metadata['general.file_type']), projector)
}

/** Draft models and parts of speech models are missing here: models refer to them by name. */
const NOT_A_MODEL: Partial<Record<FileRole, (path: string) => string>> = {
  projector: (path: string) =>
    `${path} is a projector, which a model uses to see or hear. Import the model's own file; a projector beside it is included.`,
  adapter: (path: string) => `${path} is a LoRA adapter, not a whole model. Merge it into its base model first.`,
  imatrix: (path: string) => `${path} has data for quantization (an importance matrix), not a model.`,
  image: (path: string) =>
    `${path} is a model that makes images or videos, which llama.cpp cannot run. Use a program for such models.`
}

function checkShards(path: string, shards: GgufFile[]): void {
  const { metadata } = shards[0]!
  const count = Number(metadata['split.count'] ?? 1)
  if (count > 1 && shards.length !== count) {
    throw refuseSource(
      `${path} is one of ${count} shards, but its name is not of the form <name>-00001-of-${String(count).padStart(5, '0')}.gguf, ` +
        'which is needed to find the others. Give all shards their original names.'
    )
  }
  const tensors = shards.reduce((sum, shard) => sum + shard.tensorCount, 0)
  const expected = Number(metadata['split.tensors.count'] ?? tensors)
  if (expected !== tensors) {
    throw refuseSource(
      `The shards of ${path} do not belong together: they have ${tensors} tensors, the first one declares ${expected}. ` +
        'Download them again.'
    )
  }
}

async function readSafetensorsModel(files: SourceFile[]): Promise<ModelMetadata> {
  const weights = []
  for (const file of files) {
    if (file.role === 'model') weights.push(await reading(file, opened => readSafetensors(file.source, opened)))
  }
  const read = async <T>(path: string, how: (found: Found) => Promise<T>) => {
    const found = files.find(file => file.path === path)
    return found && (await how(found))
  }
  const config = await read('config.json', readJson)
  if (!config) {
    throw refuseSource(`The SafeTensors model of ${files[0]!.source} has no config.json. Get the model's whole folder.`)
  }
  const modules = await read('modules.json', readJson)
  // The sentence-transformers module that pools token embeddings into one.
  const pooling = Object.values(modules ?? {})
    .filter(isObject)
    .find(({ type }) => /Pooling$/.test(String(type)))
  const description = {
    config,
    tokenizerConfig: await read('tokenizer_config.json', readJson),
    chatTemplate: await read('chat_template.jinja', readDescription),
    isSentenceTransformer: modules !== undefined,
    pooling: pooling && (await read(`${pooling.path}/config.json`, readJson)),
    readme: await read('README.md', readDescription)
  }
  return safetensorsMetadata(description, weights)
}

export const readHeader = (found: Found) => reading(found, opened => readGgufHeader(found.source, opened))

async function readJson(found: Found): Promise<Record<string, unknown>> {
  const path = found.source
  const text = await readDescription(found)
  const { value, fault } = await parseUntrustedJson(text, { python: true })
  if (fault !== undefined) {
    const foreign = foreignStart(path, Buffer.from(text.slice(0, START_SIZE)))
    throw refuseSource(foreign ?? `${path} is damaged: ${fault}. Download it again.`)
  }
  if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  throw refuseSource(`${path} is damaged: it is not a JSON object. Download it again.`)
}

export async function readDescription(found: Found): Promise<string> {
  return await reading(found, async file => {
    const { size } = await file.stat()
    if (size > MAX_DESCRIPTION_BYTES) {
      throw refuseSource(`${found.source} is too large (${size} bytes) to describe a model.`)
    }
    return (await readOpened(file, size)).toString('utf8')
  })
}
