import { open } from 'node:fs/promises'
import { basename } from 'node:path/posix'
import type { AdoptedFile } from '../../../../core/contracts/adopted-files.ts'
import type { StoredFile } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../../core/models/foreign-start.ts'
import { readGguf } from '../../../../core/models/gguf-file.ts'
import { shardNames, storedName } from '../../../../core/models/gguf-file-name.ts'
import { describesSafetensors, isTokenizer } from '../../../../core/models/safetensors-layout.ts'
import { readOpened } from '../../../../core/system/regular-file.ts'

/** An uploaded file and its name on the client. */
export interface UploadedFile {
  name: string
  sha256: string
  /** Absolute path of its content. */
  path: string
}

/**
 * Determines the format of uploaded model files and the role of each file.
 * @throws CorralError `invalid_request` naming what is missing or unusable
 */
export async function detectFiles(
  files: UploadedFile[]
): Promise<{ format: 'gguf' | 'safetensors'; files: AdoptedFile[] }> {
  const isWeights = ({ name }: UploadedFile) => /\.safetensors$/i.test(name)
  if (files.some(isWeights)) return { format: 'safetensors', files: safetensorsFiles(files) }
  const adopted: AdoptedFile[] = []
  for (const file of files) adopted.push(adoptedFile(file, ggufName(file.name), await ggufRole(file)))
  // Model files come first, sorted by shard.
  const order = ({ role, path }: AdoptedFile) => `${role === 'model' ? 0 : 1} ${path}`
  return { format: 'gguf', files: adopted.sort((a, b) => (order(a) < order(b) ? -1 : 1)) }
}

function safetensorsFiles(files: UploadedFile[]): AdoptedFile[] {
  // Some clients send whole paths. sentence-transformers modules have their folder in the name.
  const named = files.map(file => ({
    ...file,
    name: /(?:^|\/)(\d+_\w+\/[^/]+)$/.exec(file.name)?.[1] ?? basename(file.name)
  }))
  const weights = named.filter(({ name }) => /\.safetensors$/i.test(name) && !name.includes('/'))
  const names = new Set(named.map(({ name }) => name))
  const missing = [...new Set(weights.flatMap(({ name }) => shardNames(name)))].filter(name => !names.has(name))
  if (!names.has('config.json')) missing.unshift('config.json')
  if (missing.length > 0) {
    throw refuse(
      `The SafeTensors model is incomplete: ${missing.slice(0, 12).join(', ')} missing. Send its whole folder.`
    )
  }
  if (![...names].some(isTokenizer)) {
    throw refuse('The SafeTensors model has no tokenizer (tokenizer.json or tokenizer.model). Send its whole folder.')
  }
  const others = named.filter(file => !weights.includes(file) && describesSafetensors(file.name))
  return [
    ...weights.map(file => adoptedFile(file, file.name, 'model')).sort((a, b) => (a.path < b.path ? -1 : 1)),
    ...others.map(file => adoptedFile(file, file.name, 'other'))
  ]
}

function adoptedFile({ path: source, sha256 }: UploadedFile, path: string, role: StoredFile['role']): AdoptedFile {
  return { source, path, role, sha256 }
}

/** Clients may choose any file name. The basename is kept because llama.cpp finds shards by name. */
function ggufName(name: string): string {
  const plain = storedName(basename(name.replaceAll('\\', '/')))
  return /\.gguf$/i.test(plain) ? plain : `${plain}.gguf`
}

async function ggufRole({ name, path }: UploadedFile): Promise<StoredFile['role']> {
  const start = await readStart(path)
  if (start.toString('latin1', 0, 4) !== 'GGUF') {
    throw refuse(
      foreignStart(name, start) ??
        `${JSON.stringify(name)} is neither a GGUF file nor part of a SafeTensors model. ` +
          'Send GGUF files, or the whole folder of a SafeTensors model.'
    )
  }
  const { metadata } = await readGguf(path)
  return metadata['general.type'] === 'mmproj' || metadata['general.architecture'] === 'clip' ? 'projector' : 'model'
}

async function readStart(path: string): Promise<Buffer> {
  const file = await open(path, 'r')
  try {
    return await readOpened(file, START_SIZE)
  } finally {
    await file.close()
  }
}

const refuse = (message: string) => new CorralError('invalid_request', message, { param: 'files' })
