import { rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import type { PlannedDownload, PullPlan } from '../../../core/contracts/downloads.ts'
import { isSystemError, messageOf } from '../../../core/errors.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { partialBytes, removePartial } from '../transfer/part-file.ts'

/** The record of a pull, in its folder. */
export const JOB_FILE = 'job.json'
const JOB_VERSION = 1

const RelativePath = Type.String({ pattern: '^(?!.*(^|/)\\.\\.?(/|$))[^/\\\\:\\u0000]+(/[^/\\\\:\\u0000]+)*$' })
const Size = Type.Optional(Type.Integer({ minimum: 0 }))
const Room = Type.Object({ required: Type.Number(), available: Type.Number(), fits: Type.Boolean() })

const PlanSchema = Type.Object({
  name: Type.Object({ owner: Type.String(), name: Type.String(), variant: Type.Optional(Type.String()) }),
  label: Type.String(),
  format: Type.Union([Type.Literal('gguf'), Type.Literal('safetensors')]),
  repository: Type.Object({
    hub: Type.String(),
    id: Type.String(),
    revision: Type.String(),
    address: Type.String(),
    gated: Type.Boolean(),
    more: Type.Optional(Type.Record(Type.String(), Type.String()))
  }),
  files: Type.Array(
    Type.Object({
      path: Type.String(),
      storedPath: RelativePath,
      role: Type.Union([Type.Literal('model'), Type.Literal('projector'), Type.Literal('other')]),
      size: Size,
      sha256: Type.Optional(Type.String({ pattern: '^[0-9a-f]{64}$' })),
      gitSha1: Type.Optional(Type.String({ pattern: '^[0-9a-f]{40}$' }))
    }),
    { minItems: 1 }
  ),
  size: Type.Number(),
  reason: Type.String(),
  choices: Type.Array(Type.Object({ label: Type.String(), size: Type.Number() })),
  memory: Room,
  disk: Room,
  warnings: Type.Array(Type.String()),
  present: Type.Boolean()
})

const JobSchema = Type.Object({
  version: Type.Literal(JOB_VERSION),
  id: Type.String({ pattern: '^[0-9a-f]{12}$' }),
  createdAt: Type.String(),
  /** `downloading` and `storing` are continued at the next start. */
  state: Type.Union([
    Type.Literal('downloading'),
    Type.Literal('storing'),
    Type.Literal('paused'),
    Type.Literal('failed')
  ]),
  detached: Type.Boolean(),
  /** Why it is paused or failed. */
  reason: Type.Optional(Type.String()),
  plan: PlanSchema
})

/** The record of an unfinished pull. It holds no locations and no secrets. */
export type JobRecord = Omit<Static<typeof JobSchema>, 'plan' | 'version'> & { plan: PullPlan }

/** Writes a pull's record atomically. */
export async function writeJob(folder: string, job: JobRecord): Promise<void> {
  await writeJsonFile(join(folder, JOB_FILE), { version: JOB_VERSION, ...job }, { mode: 0o600 })
}

/**
 * Reads a pull's record.
 * @returns the record, or why it cannot be used
 */
export async function readJob(folder: string): Promise<JobRecord | string> {
  try {
    const file = await readJsonFile(join(folder, JOB_FILE), JobSchema)
    if (!file?.value) return file?.fault ?? 'it is not there'
    const { version: _, ...job } = file.value
    return job as JobRecord
  } catch (error) {
    return messageOf(error)
  }
}

/** Subfolder with a pull's files and their partial data. */
export const FILES_FOLDER = 'files'

/** Identifies the content of a file: its digest, or else its revision. */
function contentOf({ repository }: PullPlan, file: PlannedDownload): string {
  return file.sha256 ?? file.gitSha1 ?? `${repository.hub} ${repository.id} ${repository.revision} ${file.path}`
}

const contents = (plan: PullPlan) => new Map(plan.files.map(file => [file.storedPath, contentOf(plan, file)]))

/** Whether two plans fetch the same bytes under the same names. */
export function sameFiles(one: PullPlan, other: PullPlan): boolean {
  const [left, right] = [contents(one), contents(other)]
  return left.size === right.size && [...left].every(([path, content]) => right.get(path) === content)
}

/** Removes files and partial data of one plan that have other content in another plan. */
export async function dropChangedPartials(folder: string, from: PullPlan, to: PullPlan): Promise<void> {
  const kept = contents(to)
  for (const [path, content] of contents(from)) {
    if (kept.get(path) === content) continue
    const target = join(folder, FILES_FOLDER, ...path.split('/'))
    await rm(target, { force: true })
    await removePartial(target)
  }
}

/** Bytes on disk of each file of a plan. */
export async function fetchedBytes(folder: string, { files }: PullPlan): Promise<number[]> {
  const completed: number[] = []
  for (const { storedPath } of files) {
    const target = join(folder, FILES_FOLDER, ...storedPath.split('/'))
    try {
      completed.push((await stat(target)).size)
    } catch (error) {
      if (!isSystemError(error, 'ENOENT')) throw error
      completed.push(await partialBytes(target))
    }
  }
  return completed
}

/** Disk space that a pull's files use, without holes and without files that are linked elsewhere too. */
export async function bytesOnDisk(folder: string): Promise<number> {
  let sum = 0
  for (const entry of await namesIn(folder)) {
    const path = join(folder, entry)
    try {
      const facts = await stat(path)
      if (facts.isDirectory()) sum += await bytesOnDisk(path)
      // Windows reports no blocks.
      else if (facts.nlink === 1) sum += facts.blocks ? facts.blocks * 512 : facts.size
    } catch (error) {
      if (!isSystemError(error, 'ENOENT')) throw error
    }
  }
  return sum
}
