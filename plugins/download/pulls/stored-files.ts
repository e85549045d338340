import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { join } from 'node:path'
import type { PlannedDownload, PullPlan } from '../../../core/contracts/downloads.ts'
import type { HubRepository } from '../../../core/contracts/hubs.ts'
import type { Origin } from '../../../core/contracts/models.ts'
import type { StoredFile, StoredVariant } from '../../../core/contracts/storage.ts'
import { isSystemError } from '../../../core/errors.ts'
import { isWhole } from '../../../core/models/stored-variant.ts'

/** The recorded origin of a model from a hub. Mirrors of a hub count as the same origin, so no server is named. */
export function originOf({ hub, id, address, revision }: Omit<HubRepository, 'files'>): Origin {
  // An id that is an address may be signed.
  return { kind: 'hub', from: id.includes('://') ? address : `${hub}:${id}`, revision }
}

/**
 * The variant that has exactly a plan's files, and has them still on disk.
 * @param variants those of the plan's model
 */
export async function variantWithFiles(
  plan: Pick<PullPlan, 'label' | 'format' | 'files' | 'repository'>,
  variants: StoredVariant[]
): Promise<StoredVariant | undefined> {
  const isLabelled = ({ label }: StoredVariant) => label.toLowerCase() === plan.label.toLowerCase()
  for (const variant of [...variants].sort((a, b) => Number(isLabelled(b)) - Number(isLabelled(a)))) {
    if (variant.format === plan.format && variant.files.length === plan.files.length) {
      if ((await hasFiles(variant, plan)) && (await isWhole(variant))) return variant
    }
  }
  return undefined
}

/** Absolute paths of a plan's files that variants have already, by their index in the plan. */
export function storedPaths({ files }: Pick<PullPlan, 'files'>, variants: StoredVariant[]): Map<number, string> {
  const paths = new Map<number, string>()
  for (const [index, { sha256 }] of files.entries()) {
    if (sha256 === undefined) continue
    for (const { directory, files: stored } of variants) {
      const same = stored.find(file => file.sha256 === sha256)
      if (same) paths.set(index, join(directory, ...same.path.split('/')))
    }
  }
  return paths
}

/** Bytes of a plan's files that variants have already. */
export function storedBytes(plan: Pick<PullPlan, 'files'>, variants: StoredVariant[]): number {
  return [...storedPaths(plan, variants).keys()].reduce((sum, index) => sum + (plan.files[index]!.size ?? 0), 0)
}

async function hasFiles(variant: StoredVariant, plan: Pick<PullPlan, 'files' | 'repository'>): Promise<boolean> {
  const origin = originOf(plan.repository)
  const sameOrigin = variant.origin.kind === 'hub' && variant.origin.from === origin.from
  const sameRevision = sameOrigin && variant.origin.revision === origin.revision
  for (const file of plan.files) {
    if (!(await hasFile(variant, file, { sameOrigin, sameRevision }))) return false
  }
  return true
}

async function hasFile(
  { directory, files }: StoredVariant,
  file: PlannedDownload,
  { sameOrigin, sameRevision }: { sameOrigin: boolean; sameRevision: boolean }
): Promise<boolean> {
  const { sha256, gitSha1 } = file
  if (sha256) return files.some(stored => stored.role === file.role && stored.sha256 === sha256)
  const stored = files.find(({ path }) => path === file.storedPath)
  if (!stored || (file.size !== undefined && stored.size !== file.size)) return false
  // The content of a revision never changes.
  if (sameRevision) return true
  return gitSha1 ? (await gitDigest(directory, stored)) === gitSha1 : sameOrigin && file.size !== undefined
}

/** Git's SHA-1 of a file. Computed each time: only small files lack a SHA-256. */
async function gitDigest(directory: string, { path, size }: StoredFile): Promise<string | undefined> {
  const hash = createHash('sha1').update(`blob ${size}\0`)
  try {
    for await (const chunk of createReadStream(join(directory, path))) hash.update(chunk)
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  }
  return hash.digest('hex')
}
