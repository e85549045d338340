import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { constants, copyFile, type FileHandle, link, mkdir, open, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { OnCopied } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults, Origin } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import type { StoredFile } from '../../../core/contracts/storage.ts'
import { isSystemError } from '../../../core/errors.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { type FileIdentity, isSameFile, openRegularFile, pathOfOpened } from '../../../core/system/regular-file.ts'
import { type ModelSource, refuseSource, type SourceFile } from './model-files.ts'
import { createStagingFolder, discardFolder, syncFolder } from './model-folders.ts'

/** A revision whose files are complete in a staging folder, ready to become part of a model. */
export interface StagedRevision extends Omit<ModelSource, 'files'> {
  folder: string
  files: StoredFile[]
  origin: Origin
  defaults?: ModelDefaults
  /** As in an `AdoptRequest`. */
  becomesDefault?: boolean
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
    for (const { source, path, role, size, dev, ino, sha256: known, claimedSha256 } of sources) {
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
        identity: { dev, ino },
        onCopy: () => onCopied?.({ path, role }),
        space: { folder: models, bytes: total - before },
        onBytes: bytes => {
          completed += bytes
          report(false)
        }
      })
      if (completed - before !== size) {
        throw refuseSource(
          `${source} changed while it was imported (${size} bytes before, ${completed - before} now). ` +
            'Wait until it is complete, then repeat the import.'
        )
      }
      if (sha256 !== (known ?? claimedSha256 ?? sha256)) {
        throw refuseSource(`${source} is damaged: its SHA-256 is not the one it should have. Download it again.`)
      }
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

/** One digest for a set of files, whatever their names, and the defaults of the model: 64 hex digits. */
export function digestOf(files: StoredFile[], defaults?: ModelDefaults): string {
  const lines = [...files].sort((a, b) => (a.path < b.path ? -1 : 1)).map(file => `${file.role} ${file.sha256}\n`)
  // With the keys of objects in order, so that equal defaults have equal texts.
  const inOrder = (_: string, value: unknown) =>
    isObject(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value
  if (defaults) lines.push(`defaults ${JSON.stringify(defaults, inOrder)}\n`)
  return createHash('sha256').update(lines.join('')).digest('hex')
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
  /** Which file it was when it was looked at: no other one is taken. */
  identity?: FileIdentity
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
  const file = await openRegularFile(source, options.identity)
  try {
    if (await linkFile(file, source, target, options)) {
      if (options.sha256 !== undefined) {
        options.onBytes?.((await stat(target)).size)
        return options.sha256
      }
      // The store's own file: a reflink no longer follows its source.
      return await readDigest(createReadStream(target, { highWaterMark: PIECE }), undefined, options)
    }
    options.onCopy?.()
    await requireSpace(options.space.folder, options.space.bytes, 'The model needs', 'models')
    const copy = await open(target, 'wx', 0o644)
    try {
      const pieces = file.createReadStream({ autoClose: false, highWaterMark: PIECE })
      const digest = await readDigest(pieces, copy, options)
      await copy.sync()
      return digest
    } finally {
      await copy.close()
    }
  } finally {
    await file.close()
  }
}

async function linkFile(
  file: FileHandle,
  source: string,
  target: string,
  { allowHardLink, sha256 }: TransferOptions
): Promise<boolean> {
  // Systems answer a clone that they cannot make with a dozen codes.
  const reflink = () =>
    copyFile(pathOfOpened(file, source), target, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL)
  // It fails on another file system, one without links, or for a file of another user: a copy does it.
  const hardLink = async () => {
    await link(source, target)
    // By name: another file may have come there since the opening, and must not become part of a model.
    if (isSameFile(await stat(target, { bigint: true }), await file.stat({ bigint: true }))) return
    throw new Error(`${source} is another file now`)
  }
  const both = allowHardLink ? [reflink, hardLink] : [reflink]
  // A clone is read for the digest in any case; where the digest is known, the file's very bytes are what it is of.
  for (const attempt of sha256 === undefined ? both : both.reverse()) {
    try {
      await attempt()
      return true
    } catch (error) {
      if (isSystemError(error, 'EEXIST')) throw error
      // Some systems leave an empty file behind.
      await rm(target, { force: true })
    }
  }
  return false
}

/** Reads a file's bytes once for its SHA-256, writing what was read to `copy` if there is one. */
async function readDigest(
  pieces: AsyncIterable<Buffer>,
  copy: FileHandle | undefined,
  options: TransferOptions
): Promise<string> {
  const hash = createHash('sha256')
  for await (const piece of pieces) {
    options.signal?.throwIfAborted()
    hash.update(piece)
    await copy?.appendFile(piece)
    options.onBytes?.(piece.length)
  }
  return hash.digest('hex')
}
