import { link, mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { PullPlan } from '../../../core/contracts/downloads.ts'
import type { Hub } from '../../../core/contracts/hubs.ts'
import type { Storage, StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import type { TransferredFile, Transfers } from '../transfer/transfers.ts'
import type { PullProgress } from './pull-progress.ts'
import { originOf, storedPaths, variantWithFiles } from './stored-files.ts'

/** The steps of a pull. */
export interface PullWork {
  /** The stored variant with exactly the plan's files. */
  stored(plan: PullPlan): Promise<StoredVariant | undefined>
  /** Downloads and verifies the plan's files into a folder. */
  fetch(
    plan: PullPlan,
    folder: string,
    progress: PullProgress,
    signal: AbortSignal
  ): Promise<readonly TransferredFile[]>
  /** Stores them as a variant; the files stay in the folder too. */
  store(plan: PullPlan, folder: string, files: readonly TransferredFile[], signal: AbortSignal): Promise<StoredVariant>
}

/** Identifies the content of a plan's files for the transfer; files with digests may come from any revision. */
function identityOf({ repository: { hub, id, revision }, files }: PullPlan): string {
  return files.every(file => file.sha256 ?? file.gitSha1) ? `${hub} ${id}` : `${hub} ${id} ${revision}`
}

export function createPullWork(services: {
  storage: Storage
  transfers: Transfers
  hubOf(name: string): Hub | undefined
}): PullWork {
  const { storage, transfers, hubOf } = services
  return {
    stored: plan => variantWithFiles(plan, storage.variants(plan.name)),

    async fetch(plan, folder, progress, signal) {
      const { repository, files } = plan
      const hub = hubOf(repository.hub)
      if (!hub) {
        throw new CorralError(
          'hub_unreachable',
          `This pull comes from the hub "${repository.hub}", which is not enabled. Enable it in config.yaml, or cancel the pull.`
        )
      }
      await linkStored(plan, folder, storage.variants(plan.name))
      return await transfers.run({
        identity: identityOf(plan),
        files: files.map(({ path, storedPath, size, sha256, gitSha1 }) => ({
          path,
          target: join(folder, ...storedPath.split('/')),
          size,
          ...(sha256 ? { sha256 } : {}),
          ...(gitSha1 ? { gitSha1 } : {})
        })),
        locate: (index, aborted) => hub.locate({ ...repository, files }, files[index]!, aborted),
        signal,
        onProgress: (index, completed, total) => progress.report(index, completed, total)
      })
    },

    async store(plan, folder, files, signal) {
      const adopted = storage.adopt(
        {
          name: { owner: plan.name.owner, name: plan.name.name },
          format: plan.format,
          label: plan.label,
          origin: originOf(plan.repository),
          files: plan.files.map(({ storedPath, role }, index) => ({
            source: join(folder, ...storedPath.split('/')),
            path: storedPath,
            role,
            sha256: files[index]!.sha256
          }))
        },
        { signal }
      )
      return await adopted.catch(error => {
        throw error instanceof CorralError && error.code === 'invalid_request' ? unusable(plan, folder, error) : error
      })
    }
  }
}

/** Storage's advice is meant for imported files: here only the reason helps, since the hub has just these bytes. */
function unusable({ repository: { id, address } }: PullPlan, folder: string, error: CorralError): CorralError {
  const [reason] = error.message.replaceAll(join(folder, '/'), '').split(/(?<=[^.])\.(?:\s+(?=[A-Z])|$)/)
  return new CorralError(
    'unsupported_capability',
    `What "${id}" has at ${address} cannot be run: ${reason}. Cancel the pull and choose another variant or repository.`,
    { cause: error }
  )
}

/**
 * Links files that other revisions and variants of the model have already: projectors are mostly the same for all of them,
 * and a new revision may only have a new description. The transfer verifies them like all others.
 */
async function linkStored(plan: PullPlan, folder: string, variants: StoredVariant[]): Promise<void> {
  for (const [index, source] of storedPaths(plan, variants)) {
    const target = join(folder, ...plan.files[index]!.storedPath.split('/'))
    await mkdir(dirname(target), { recursive: true })
    try {
      await link(source, target)
    } catch (error) {
      // It exists from before, cannot be linked, or was deleted: the transfer will see to it.
      if (
        !isSystemError(
          error,
          'EEXIST',
          'ENOENT',
          'EPERM',
          'EXDEV',
          'EMLINK',
          'ENOTSUP',
          'EOPNOTSUPP',
          'ENOSYS',
          'EISDIR'
        )
      ) {
        throw error
      }
    }
  }
}
