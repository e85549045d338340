import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { ConvertedModel } from '../../core/contracts/conversion.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { isSystemError } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../core/system/json-file.ts'

/** Beside a variant's own files; everything below is the conversion's. */
const FOLDER = 'converted'
const RECORD = 'conversion.json'
const UNFINISHED = '.unfinished-'
const FORMAT = 1

const FileName = Type.String({ pattern: '^[^/\\\\:\\u0000]+$' })
const RecordSchema = Type.Object({
  format: Type.Literal(FORMAT),
  dtype: Type.String(),
  /** Version of llama.cpp whose converter made it. */
  converter: Type.String(),
  /** As `converter`, of llama-quantize where that was used. */
  quantize: Type.Optional(Type.String()),
  files: Type.Array(
    Type.Object({
      name: FileName,
      size: Type.Integer({ minimum: 1 }),
      role: Type.Union([Type.Literal('model'), Type.Literal('projector')])
    }),
    { minItems: 1 }
  ),
  createdAt: Type.String()
})
/** What `conversion.json` beside the GGUF says. */
export type ConversionRecord = Static<typeof RecordSchema>

const root = (variant: Pick<StoredVariant, 'directory'>) => join(variant.directory, FOLDER)
const folderOf = (variant: Pick<StoredVariant, 'directory'>, dtype: string) => join(root(variant), dtype)

async function sizeOf(path: string): Promise<number> {
  try {
    return (await stat(path)).size
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return -1
    throw error
  }
}

/** What was made of a variant in a type; undefined when there is nothing, or when it is not whole any more. */
export async function findConverted(
  variant: Pick<StoredVariant, 'directory'>,
  dtype: string
): Promise<ConvertedModel | undefined> {
  const folder = folderOf(variant, dtype)
  const record = (await readJsonFile(join(folder, RECORD), RecordSchema))?.value
  if (record?.dtype !== dtype) return undefined
  for (const { name, size } of record.files) {
    if ((await sizeOf(join(folder, name))) !== size) return undefined
  }
  const pathOf = (wanted: 'model' | 'projector') => {
    const file = record.files.find(({ role }) => role === wanted)
    return file && join(folder, file.name)
  }
  const modelPath = pathOf('model')
  if (modelPath === undefined) return undefined
  const projectorPath = pathOf('projector')
  return {
    dtype,
    modelPath,
    ...(projectorPath && { projectorPath }),
    size: record.files.reduce((sum, file) => sum + file.size, 0),
    createdAt: record.createdAt,
    converter: record.converter
  }
}

/** All that was made of a variant, by type. */
export async function listConverted(variant: Pick<StoredVariant, 'directory'>): Promise<ConvertedModel[]> {
  const dtypes = (await namesIn(root(variant))).filter(name => !name.startsWith('.')).sort()
  const found = await Promise.all(dtypes.map(dtype => findConverted(variant, dtype)))
  return found.filter(model => model !== undefined)
}

/** An empty folder to convert in, on the disk where the result will lie. */
export async function createUnfinished(variant: StoredVariant): Promise<string> {
  const folder = join(root(variant), UNFINISHED + randomBytes(6).toString('hex'))
  await mkdir(folder, { recursive: true })
  return folder
}

/** Removes what killed conversions of a variant left; none may be running. */
export async function clearUnfinished(variant: Pick<StoredVariant, 'directory'>): Promise<void> {
  for (const name of await namesIn(root(variant))) {
    if (name.startsWith(UNFINISHED)) await discard(join(root(variant), name))
  }
}

/**
 * Makes files the conversion of a variant, by one rename as the last step.
 * @param folder holds these files and nothing else; it is used up
 */
export async function publish(variant: StoredVariant, folder: string, record: Omit<ConversionRecord, 'format'>) {
  for (const { name } of record.files) {
    const file = await open(join(folder, name), 'r+')
    try {
      await file.sync()
    } finally {
      await file.close()
    }
  }
  await writeJsonFile(join(folder, RECORD), { format: FORMAT, ...record }, { pretty: true })
  const target = folderOf(variant, record.dtype)
  await removeConverted(variant, record.dtype)
  await rename(folder, target)
}

/** Removes the conversion in a type; no matter whether there is one. */
export async function removeConverted(variant: StoredVariant, dtype: string): Promise<void> {
  const aside = join(root(variant), UNFINISHED + randomBytes(6).toString('hex'))
  try {
    await rename(folderOf(variant, dtype), aside)
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return
    throw error
  }
  await discard(aside)
}

export async function discard(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 3 })
}
