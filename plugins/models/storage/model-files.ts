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
import { FILL_IN_TOKENS } from './capabilities.ts'
import { ggufLabel, ggufMetadata } from './gguf-metadata.ts'
import { readSafetensors, safetensorsMetadata } from './safetensors-metadata.ts'

/** A file to be taken into the store; `source` has no symbolic links. Its size is in bytes. */
export type SourceFile = AdoptedFile & FileIdentity & { size: number }

/** Reads of a file that was found before: never of another one that has taken its place since. */
async function reading<T>(found: Found, read: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await openRegularFile(found.source, found)
  try {
    return await read(file)
  } finally {
    await file.close()
  }
}
type Found = FileIdentity & { source: string }

/** A model whose files were found on disk and are whole, according to their headers. */
export interface ModelSource {
  format: 'gguf' | 'safetensors'
  label: string
  files: SourceFile[]
  metadata: ModelMetadata
}

/** Texts that describe a model are read whole; nothing of this size is one. */
const MAX_DESCRIPTION = 64_000_000

/** Why files cannot become a model. */
export const refuseSource = (message: string, cause?: unknown) =>
  new CorralError('invalid_request', message, { param: 'path', cause })

/** Explains why the system does not let a file be read; returns any other error as it is. */
export function explainedReading(path: string, error: unknown): unknown {
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

/**
 * Reads the headers of a model's files, and checks that they are one whole model.
 * @param files model files first, in the order of their shards
 * @param named name of the first one, as far as it tells the quantization
 * @throws CorralError `invalid_request` naming the file and what is wrong with it
 */
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
    if (file.role === 'projector') {
      if (purpose !== 'projector') throw refuseSource(`${file.source} is named as a projector but is none. Rename it.`)
      projector = gguf
    } else {
      const refusal = NOT_A_MODEL[purpose]
      if (refusal) throw refuseSource(refusal(file.source))
      shards.push(gguf)
    }
  }
  const { source } = files[0]!
  if (shards.every(shard => shard.tensorCount === 0)) {
    throw refuseSource(`${source} holds no weights (it is a vocabulary only). Name a file that holds the whole model.`)
  }
  checkShards(source, shards)
  return ggufMetadata(shards, ggufLabel(named, shards[0]!.metadata['general.file_type']), projector)
}

/** Drafts and parts of speech models are not in it: other models use them by their names here. */
const NOT_A_MODEL: Partial<Record<FileRole, (path: string) => string>> = {
  projector: (path: string) =>
    `${path} is a projector, which a model uses to see or hear. Import the model's own file; a projector beside it is taken along.`,
  adapter: (path: string) => `${path} is a LoRA adapter, no whole model. Merge it into its base model first.`,
  imatrix: (path: string) => `${path} holds data for quantization (an importance matrix), no model.`,
  image: (path: string) =>
    `${path} is a model that makes images or videos, which llama.cpp cannot run. Use a program for such models.`
}

function checkShards(path: string, shards: GgufFile[]): void {
  const { metadata } = shards[0]!
  const count = Number(metadata['split.count'] ?? 1)
  if (count > 1 && shards.length !== count) {
    throw refuseSource(
      `${path} is one of ${count} shards, but its name is not of the form <name>-00001-of-${String(count).padStart(5, '0')}.gguf, ` +
        'by which the others are found. Give all shards their original names.'
    )
  }
  const tensors = shards.reduce((sum, shard) => sum + shard.tensorCount, 0)
  const expected = Number(metadata['split.tensors.count'] ?? tensors)
  if (expected !== tensors) {
    throw refuseSource(
      `The shards of ${path} do not belong together: they hold ${tensors} tensors, the first one names ${expected}. ` +
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
  // The module of sentence-transformers that makes one embedding of many.
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

/** Reads a GGUF file's header. @throws CorralError `invalid_request` */
export const readHeader = (found: Found) => reading(found, opened => readGgufHeader(found.source, opened))

/** Reads a JSON object that describes a model. @throws CorralError `invalid_request` when it is damaged or too large */
async function readJson(found: Found): Promise<Record<string, unknown>> {
  const path = found.source
  const text = await readDescription(found)
  const { value, fault } = await parseUntrustedJson(text, { python: true })
  if (fault !== undefined) {
    const foreign = foreignStart(path, Buffer.from(text.slice(0, START_SIZE)))
    throw refuseSource(foreign ?? `${path} is damaged: ${fault}. Download it again.`)
  }
  if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  throw refuseSource(`${path} is damaged: it holds no JSON object. Download it again.`)
}

/** Reads a text that describes a model. @throws CorralError `invalid_request` when it is too large */
export async function readDescription(found: Found): Promise<string> {
  return await reading(found, async file => {
    const { size } = await file.stat()
    if (size > MAX_DESCRIPTION) {
      throw refuseSource(`${found.source} is too large (${size} bytes) to describe a model.`)
    }
    return (await readOpened(file, size)).toString('utf8')
  })
}
