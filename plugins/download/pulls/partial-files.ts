import { rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { PlannedDownload, PullPlan } from '../../../core/contracts/downloads.ts'
import { isSystemError } from '../../../core/errors.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { partialBytes, removePartial } from '../transfer/create.ts'

/** Holds, below a pull's folder, its files and their partial data. */
export const FILES_FOLDER = 'files'

/** What names a file's content: its digest, or for files without one the revision it belongs to. */
function contentOf({ repository }: PullPlan, file: PlannedDownload): string {
  return file.sha256 ?? file.gitSha1 ?? `${repository.hub} ${repository.id} ${repository.revision} ${file.path}`
}

const contents = (plan: PullPlan) => new Map(plan.files.map(file => [file.storedPath, contentOf(plan, file)]))

/** Whether two plans fetch the same bytes under the same names. */
export function sameFiles(one: PullPlan, other: PullPlan): boolean {
  const [left, right] = [contents(one), contents(other)]
  return left.size === right.size && [...left].every(([path, content]) => right.get(path) === content)
}

/** Removes what was fetched for one plan and is nothing of another one. */
export async function dropChangedPartials(folder: string, from: PullPlan, to: PullPlan): Promise<void> {
  const kept = contents(to)
  for (const [path, content] of contents(from)) {
    if (kept.get(path) === content) continue
    const target = join(folder, FILES_FOLDER, ...path.split('/'))
    await rm(target, { force: true })
    await removePartial(target)
  }
}

/** Bytes of each of a plan's files that were fetched. */
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

/** Bytes that a pull's files take on disk by themselves, holes not counted. */
export async function bytesOnDisk(folder: string): Promise<number> {
  let sum = 0
  for (const entry of await namesIn(folder)) {
    const path = join(folder, entry)
    try {
      const facts = await stat(path)
      if (facts.isDirectory()) sum += await bytesOnDisk(path)
      // Windows counts no blocks. What has other names too takes its space there.
      else if (facts.nlink === 1) sum += facts.blocks ? facts.blocks * 512 : facts.size
    } catch (error) {
      if (!isSystemError(error, 'ENOENT')) throw error
    }
  }
  return sum
}
