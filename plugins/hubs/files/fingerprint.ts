import { createHash } from 'node:crypto'
import type { HubFile } from '../../../core/contracts/downloads.ts'

/** Names a listing's content, for hubs that name no commit. The order of its files does not matter. */
export function fingerprint(files: readonly HubFile[]): string {
  const lines = files.map(({ path, size, sha256, gitSha1 }) => JSON.stringify([path, size, sha256 ?? gitSha1])).sort()
  return `listing-${createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 40)}`
}

/** Whether a revision is a fingerprint, which the hub itself does not know. */
export function isFingerprint(revision: string): boolean {
  return revision.startsWith('listing-')
}
