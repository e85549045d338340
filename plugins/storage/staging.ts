import { createHash } from 'node:crypto'
import { mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { ModelDefaults, ModelMetadata, Origin } from '../../core/contracts/catalog.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import type { OnCopied, StoredFile } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { transferFile } from './file-transfer.ts'
import type { SourceFile } from './model-files.ts'
import { createStagingFolder, discardFolder, syncFolder } from './model-folders.ts'

/** A revision whose files lie complete in a staging folder, ready to become part of a model. */
export interface StagedRevision {
  folder: string
  label: string
  format: 'gguf' | 'safetensors'
  files: StoredFile[]
  metadata: ModelMetadata
  origin: Origin
  defaults?: ModelDefaults
}

/** At most this many reports of progress a second. */
const REPORTS_PER_SECOND = 10

/**
 * Brings files into a new staging folder and takes their digests. Nothing is left behind when it fails.
 * @throws CorralError `insufficient_storage`; `invalid_request` when a file changes meanwhile or is not what it is said to be
 */
export async function stageFiles(
  models: string,
  sources: SourceFile[],
  waiting: Waiting & { allowHardLink: boolean; onCopied?: OnCopied }
): Promise<{ folder: string; files: StoredFile[] }> {
  const { signal, onProgress, allowHardLink, onCopied } = waiting
  const total = sources.reduce((sum, file) => sum + file.size, 0)
  const folder = await createStagingFolder(models)
  try {
    const files: StoredFile[] = []
    const folders = new Set([folder])
    let completed = 0
    let reported = 0
    for (const { source, path, role, size, sha256: known, claimedSha256 } of sources) {
      const report = (force: boolean) => {
        if (!force && performance.now() - reported < 1000 / REPORTS_PER_SECOND) return
        reported = performance.now()
        onProgress?.({ phase: 'copying', subject: path, fraction: total ? completed / total : 1, completed, total })
      }
      const before = completed
      const target = join(folder, ...path.split('/'))
      await mkdir(dirname(target), { recursive: true })
      folders.add(dirname(target))
      const sha256 = await transferFile(source, target, {
        signal,
        // Descriptions such as config.json are small, and people edit them in place; not where they were downloaded to.
        allowHardLink: allowHardLink && (role !== 'other' || known !== undefined),
        sha256: known,
        onCopy: () => onCopied?.({ path, role }),
        space: { folder: models, bytes: total - before },
        onBytes: bytes => {
          completed += bytes
          report(false)
        }
      })
      if (completed - before !== size) {
        throw new CorralError(
          'invalid_request',
          `${source} changed while it was imported (${size} bytes before, ${completed - before} now). ` +
            'Wait until it is complete, then repeat the import.',
          { param: 'path' }
        )
      }
      if (sha256 !== (known ?? claimedSha256 ?? sha256)) throw otherContent(source)
      report(true)
      files.push({ path, size, sha256, role })
    }
    // A manifest that outlives a power failure must not name files that do not.
    for (const path of folders) await syncFolder(path)
    return { folder, files }
  } catch (error) {
    await discardFolder(models, folder)
    throw error
  }
}

function otherContent(source: string): CorralError {
  return new CorralError(
    'invalid_request',
    `${source} is damaged: its SHA-256 is not the one it should have. Download it again.`,
    { param: 'path' }
  )
}

/** One digest for a set of files, whatever their names, and what was laid down for them: 64 hex digits. */
export function digestOf(files: StoredFile[], defaults?: ModelDefaults): string {
  const lines = [...files].sort((a, b) => (a.path < b.path ? -1 : 1)).map(file => `${file.role} ${file.sha256}\n`)
  if (defaults) lines.push(`defaults ${JSON.stringify(inOrder(defaults))}\n`)
  return createHash('sha256').update(lines.join('')).digest('hex')
}

/** The same value with the keys of its objects in order, so that equal ones have equal texts. */
function inOrder(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(inOrder)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, of]) => [key, inOrder(of)])
  )
}
