import { link, mkdir, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { PlannedDownload, PullPlan } from '../../../../core/contracts/downloads.ts'
import type { HubRepository } from '../../../../core/contracts/hubs.ts'
import type { Origin } from '../../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { whenMissing } from '../../../../core/errors.ts'
import { isWhole } from '../../../../core/models/stored-variant.ts'
import { hashFile } from '../transfer/digests.ts'
import { partialBytes, removePartial } from '../transfer/part-file.ts'

// ---- in the folder of a pull ---------------------------------------------------------------------------------------

export const fileTarget = (folder: string, { storedPath }: Pick<PlannedDownload, 'storedPath'>): string =>
  join(folder, 'files', ...storedPath.split('/'))

/** Identifies the content of each file by its stored path: its digest, otherwise its revision. */
function contentByPath({ repository: { hub, id, revision }, files }: PullPlan): Map<string, string> {
  return new Map(
    files.map(file => [file.storedPath, file.sha256 ?? file.gitSha1 ?? `${hub} ${id} ${revision} ${file.path}`])
  )
}

export function sameFiles(one: PullPlan, other: PullPlan): boolean {
  const [left, right] = [contentByPath(one), contentByPath(other)]
  return left.size === right.size && [...left].every(([path, content]) => right.get(path) === content)
}

/** Removes files and partial data of one plan whose content differs in another plan. */
export async function dropChangedPartials(folder: string, from: PullPlan, to: PullPlan): Promise<void> {
  const kept = contentByPath(to)
  for (const [storedPath, content] of contentByPath(from)) {
    if (kept.get(storedPath) === content) continue
    const target = fileTarget(folder, { storedPath })
    await rm(target, { force: true })
    await removePartial(target)
  }
}

export async function fetchedBytes(folder: string, { files }: Pick<PullPlan, 'files'>): Promise<number[]> {
  const completed: number[] = []
  for (const file of files) {
    const target = fileTarget(folder, file)
    const found = await stat(target).catch(whenMissing)
    completed.push(found?.size ?? (await partialBytes(target)))
  }
  return completed
}

// ---- in storage ----------------------------------------------------------------------------------------------------

export const plannedOrigin = ({ origin, repository }: Pick<PullPlan, 'origin' | 'repository'>): Origin =>
  origin ?? hubOrigin(repository)

/** Returns the recorded origin of a hub's model. It names no server, since mirrors are the same origin. */
export function hubOrigin({ hub, id, address, revision }: Omit<HubRepository, 'files'>): Origin {
  // An id that is an address may be signed.
  return { kind: 'hub', from: id.includes('://') ? address : `${hub}:${id}`, revision }
}

/** Returns the variant that has exactly a plan's files, still on disk. */
export async function variantWithFiles(
  plan: Pick<PullPlan, 'label' | 'format' | 'files' | 'repository' | 'origin'>,
  variants: StoredVariant[]
): Promise<StoredVariant | undefined> {
  const isLabelled = ({ label }: StoredVariant) => label.toLowerCase() === plan.label.toLowerCase()
  for (const variant of [...variants].sort((a, b) => Number(isLabelled(b)) - Number(isLabelled(a)))) {
    if (variant.format !== plan.format || variant.files.length !== plan.files.length) continue
    const has = await Promise.all(plan.files.map(file => hasFile(variant, file, plannedOrigin(plan))))
    if (has.every(Boolean) && (await isWhole(variant))) return variant
  }
  return undefined
}

async function hasFile({ directory, files, origin }: StoredVariant, file: PlannedDownload, from: Origin) {
  const { sha256, gitSha1, size } = file
  if (sha256) return files.some(stored => stored.role === file.role && stored.sha256 === sha256)
  const stored = files.find(({ path }) => path === file.storedPath)
  if (!stored || (size !== undefined && stored.size !== size)) return false
  const isSameOrigin = origin.kind === 'hub' && origin.from === from.from
  // The content of a revision never changes.
  if (isSameOrigin && origin.revision === from.revision) return true
  if (!gitSha1) return isSameOrigin && size !== undefined
  // Computed each time, since only small files lack a SHA-256.
  const digests = await hashFile(join(directory, stored.path), stored.size, true).catch(whenMissing)
  return digests?.gitSha1 === gitSha1
}

/** Returns the files of a plan that variants already have, with their absolute paths there. */
function storedFiles({ files }: Pick<PullPlan, 'files'>, variants: StoredVariant[]) {
  const all = variants.flatMap(({ directory, files }) => files.map(stored => ({ directory, ...stored })))
  return files.flatMap(file => {
    const same = file.sha256 === undefined ? undefined : all.findLast(({ sha256 }) => sha256 === file.sha256)
    return same ? [{ file, source: join(same.directory, ...same.path.split('/')) }] : []
  })
}

/** Returns the bytes of a plan's files that still have to be downloaded. @param folder of an unfinished pull */
export async function missingBytes(
  plan: Pick<PullPlan, 'files'>,
  folder: string | undefined,
  variants: StoredVariant[]
): Promise<number> {
  const stored = new Set(storedFiles(plan, variants).map(({ file }) => file))
  const fetched = folder === undefined ? [] : await fetchedBytes(folder, plan)
  const missing = plan.files.map((file, index) => Math.max(0, (file.size ?? 0) - (fetched[index] ?? 0)))
  return missing.reduce((sum, bytes, index) => sum + (stored.has(plan.files[index]!) ? 0 : bytes), 0)
}

/** Links files that other variants already have, for example a projector. The transfer verifies them too. */
export async function linkStored(plan: PullPlan, folder: string, variants: StoredVariant[]): Promise<void> {
  for (const { file, source } of storedFiles(plan, variants)) {
    const target = fileTarget(folder, file)
    await mkdir(dirname(target), { recursive: true })
    // If the target exists, or the source cannot be linked or was deleted, the transfer verifies or downloads it.
    await link(source, target).catch(() => undefined)
  }
}
