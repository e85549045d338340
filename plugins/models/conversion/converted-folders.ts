import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { ConvertedModel } from '../../../core/contracts/conversion.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { whenMissing } from '../../../core/errors.ts'
import { fileSize, namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'

/** Beside a variant's own files. Everything below belongs to the conversion. */
const FOLDER = 'converted'
const RECORD = 'conversion.json'
const UNFINISHED = '.unfinished-'
const FORMAT = 1

const FileName = Type.String({ pattern: '^[^/\\\\:\\u0000]+$' })
const RecordSchema = Type.Object({
  format: Type.Literal(FORMAT),
  dtype: Type.String(),
  converter: Type.String(),
  /** Version of llama.cpp whose llama-quantize was used, if any. */
  quantize: Type.Optional(Type.String()),
  files: Type.Array(
    Type.Object({
      name: FileName,
      size: Type.Integer({ minimum: 1 }),
      role: Type.Enum(['model', 'projector'])
    }),
    { minItems: 1 }
  ),
  createdAt: Type.String()
})
export type ConversionRecord = Static<typeof RecordSchema>

type Variant = Pick<StoredVariant, 'directory'>
const root = ({ directory }: Variant) => join(directory, FOLDER)
const unfinishedName = () => UNFINISHED + randomBytes(6).toString('hex')

/** Returns a variant's conversion to a type, or undefined if it does not exist or is incomplete. */
export async function findConverted(variant: Variant, dtype: string): Promise<ConvertedModel | undefined> {
  const folder = join(root(variant), dtype)
  const record = (await readJsonFile(join(folder, RECORD), RecordSchema))?.value
  if (record?.dtype !== dtype) return undefined
  for (const { name, size } of record.files) {
    if ((await fileSize(join(folder, name))) !== size) return undefined
  }
  const find = (wanted: 'model' | 'projector') => record.files.find(({ role }) => role === wanted)?.name
  const [model, projector] = [find('model'), find('projector')]
  if (model === undefined) return undefined
  const size = record.files.reduce((sum, file) => sum + file.size, 0)
  const { createdAt, converter } = record
  const projectorPath = projector && { projectorPath: join(folder, projector) }
  return { dtype, modelPath: join(folder, model), ...projectorPath, size, createdAt, converter }
}

export async function listConverted(variant: Variant): Promise<ConvertedModel[]> {
  const dtypes = (await namesIn(root(variant))).filter(name => !name.startsWith('.')).sort()
  const found = await Promise.all(dtypes.map(dtype => findConverted(variant, dtype)))
  return found.filter(model => model !== undefined)
}

export async function createUnfinished(variant: StoredVariant): Promise<string> {
  const folder = join(root(variant), unfinishedName())
  await mkdir(folder, { recursive: true })
  return folder
}

/** Removes the leftovers of killed conversions of a variant. No conversion may be running. */
export async function clearUnfinished(variant: Variant): Promise<void> {
  for (const name of await namesIn(root(variant))) {
    if (name.startsWith(UNFINISHED)) await discard(join(root(variant), name))
  }
}

/** Publishes a folder with exactly these files as a conversion. The last step is a single rename. */
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
  await removeConverted(variant, record.dtype)
  await rename(folder, join(root(variant), record.dtype))
}

export async function removeConverted(variant: StoredVariant, dtype: string): Promise<void> {
  const aside = join(root(variant), unfinishedName())
  await rename(join(root(variant), dtype), aside).catch(whenMissing)
  await discard(aside)
}

export async function discard(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true, maxRetries: 3 })
}
