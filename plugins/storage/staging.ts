import { createHash } from 'node:crypto'
import { constants, copyFile, type FileHandle, link, mkdir, open, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { OnCopied } from '../../core/contracts/adopted-files.ts'
import type { ModelDefaults, ModelMetadata, Origin } from '../../core/contracts/models.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import type { StoredFile } from '../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../core/errors.ts'
import { requireSpace } from '../../core/system/disk-space.ts'
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

/** Small enough that hashing one piece does not hold up the event loop. */
const PIECE = 512 * 1024

export interface TransferOptions {
  signal?: AbortSignal
  /** Called with the bytes done since the last call. */
  onBytes?: (bytes: number) => void
  /** Called when it is copied because it cannot be linked. */
  onCopy?: () => void
  /** Whether the store may share the file with its other owner. */
  allowHardLink: boolean
  /** Its SHA-256 where that was just computed: a linked file is not read for it once more. */
  sha256?: string
  /** Where the copies go, and the bytes that this file and those after it will take there if they must be copied. */
  space: { folder: string; bytes: number }
}

/**
 * Puts a file into the store and gives its SHA-256 (64 hex digits): by reflink, else by hard link, else by copy.
 *
 * A hard link costs no space, but the file then has two owners: who writes into the original *in place* changes the
 * model too. Downloaders and converters replace files instead, which leaves the link as it was; the digest in the
 * manifest tells whether the content is still the imported one.
 *
 * @throws CorralError `insufficient_storage` with both numbers when a copy does not fit
 */
export async function transferFile(source: string, target: string, options: TransferOptions): Promise<string> {
  options.signal?.throwIfAborted()
  if (await linkFile(source, target, options)) {
    if (options.sha256 !== undefined) {
      options.onBytes?.((await stat(target)).size)
      return options.sha256
    }
    // The store's own file: a reflink no longer follows its source.
    return readDigest(target, undefined, options)
  }
  options.onCopy?.()
  await requireSpace(options.space.folder, options.space.bytes, 'The model needs')
  const copy = await open(target, 'wx', 0o644)
  try {
    const digest = await readDigest(source, copy, options)
    await copy.sync()
    return digest
  } finally {
    await copy.close()
  }
}

async function linkFile(source: string, target: string, options: TransferOptions): Promise<boolean> {
  const { allowHardLink, sha256 } = options
  // A clone is read for the digest in any case; where the digest is known, the file's very bytes are what it is of.
  if (allowHardLink && sha256 !== undefined) return (await hardLink(source, target)) || (await reflink(source, target))
  return (await reflink(source, target)) || (allowHardLink && (await hardLink(source, target)))
}

async function reflink(source: string, target: string): Promise<boolean> {
  try {
    await copyFile(source, target, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL)
    return true
  } catch (error) {
    if (isSystemError(error, 'EEXIST')) throw error
    // Systems answer a clone they cannot make with a dozen codes, and some leave an empty file behind.
    await rm(target, { force: true })
    return false
  }
}

async function hardLink(source: string, target: string): Promise<boolean> {
  try {
    await link(source, target)
    return true
  } catch (error) {
    if (isSystemError(error, 'EEXIST')) throw error
    // Another file system, one without links, or a file of another user: a copy does it.
    return false
  }
}

/** Reads a file once for its SHA-256, writing what was read to `copy` if there is one. */
async function readDigest(source: string, copy: FileHandle | undefined, options: TransferOptions): Promise<string> {
  const hash = createHash('sha256')
  const buffer = Buffer.allocUnsafe(PIECE)
  const file = await open(source, 'r')
  try {
    for (;;) {
      options.signal?.throwIfAborted()
      const { bytesRead } = await file.read(buffer, 0, PIECE, null)
      if (bytesRead === 0) return hash.digest('hex')
      const piece = buffer.subarray(0, bytesRead)
      hash.update(piece)
      if (copy) await writeAll(copy, piece)
      options.onBytes?.(bytesRead)
    }
  } finally {
    await file.close()
  }
}

async function writeAll(file: FileHandle, piece: Buffer): Promise<void> {
  for (let offset = 0; offset < piece.length; ) {
    offset += (await file.write(piece, offset, piece.length - offset)).bytesWritten
  }
}
