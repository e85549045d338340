import { stat } from 'node:fs/promises'
import { isSystemError } from '../../../core/errors.ts'
import type { Digests } from './digest/digests.ts'
import type { TransferFile, TransferredFile } from './transfer.ts'

const CHUNK = 8 * 1024 * 1024

/** What a file's bytes are to be; what the hub does not say is undefined. */
export interface Expected {
  sha256: string | undefined
  gitSha1: string | undefined
}

/** Why the digests are not those that are expected; undefined when they are. */
export function mismatch(
  expected: Expected,
  sha256: string,
  gitSha1: string | undefined
): { expected: string; got: string } | undefined {
  if (expected.sha256 !== undefined && expected.sha256.toLowerCase() !== sha256) {
    return { expected: `SHA-256 ${expected.sha256}`, got: sha256 }
  }
  if (expected.gitSha1 !== undefined && expected.gitSha1.toLowerCase() !== gitSha1) {
    return { expected: `git SHA-1 ${expected.gitSha1}`, got: gitSha1 ?? 'none' }
  }
  return undefined
}

/** Verifies a target that is there already; undefined when there is none, or not the right one. */
export async function checkTarget(
  file: TransferFile,
  digests: Digests,
  signal: AbortSignal
): Promise<TransferredFile | undefined> {
  let size: number
  try {
    const found = await stat(file.target)
    if (!found.isFile()) return undefined
    size = found.size
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    throw error
  }
  if (file.size !== undefined && file.size !== size) return undefined
  if (file.size === undefined && file.sha256 === undefined && file.gitSha1 === undefined) return undefined
  const { sha256, gitSha1 } = await digestOf(file, size, digests, signal)
  const wrong = mismatch({ sha256: file.sha256, gitSha1: file.gitSha1 }, sha256, gitSha1)
  return wrong === undefined ? { size, sha256 } : undefined
}

function digestOf(
  file: TransferFile,
  size: number,
  digests: Digests,
  signal: AbortSignal
): Promise<{ sha256: string; gitSha1: string | undefined }> {
  return new Promise((resolve, reject) => {
    const git = file.gitSha1 !== undefined
    const abort = () => {
      digest.close()
      reject(signal.reason)
    }
    const end = <Value>(settle: (value: Value) => void) => {
      return (value: Value) => {
        signal.removeEventListener('abort', abort)
        settle(value)
      }
    }
    const digest = digests.follow(
      { path: file.target, size, chunkSize: CHUNK, git },
      {
        onDone: (sha256, gitSha1) => end(resolve)({ sha256, gitSha1 }),
        onBad: () => end(reject)(new Error(`${file.target} became shorter while it was read`)),
        onFailed: end(reject)
      }
    )
    signal.addEventListener('abort', abort, { once: true })
    if (signal.aborted) return abort()
    digest.chunks(0, new Array(Math.ceil(size / CHUNK)).fill(-1))
  })
}
