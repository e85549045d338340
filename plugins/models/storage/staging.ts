import { createHash, randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import {
  constants,
  copyFile,
  type FileHandle,
  link,
  lstat,
  mkdir,
  open,
  readdir,
  rename,
  rm,
  rmdir,
  stat,
  writeFile
} from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { OnCopied } from '../../../core/contracts/adopted-files.ts'
import type { ModelDefaults, ModelMetadata, Origin } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import type { StoredFile, StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { conflictingVariant, haveSameContent } from '../../../core/models/stored-variant.ts'
import { templateCapabilities } from '../../../core/models/template-code.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { writeJsonFile } from '../../../core/system/json-file.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { type FileIdentity, isSameFile, pathOfOpened, withRegularFile } from '../../../core/system/regular-file.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import { synced } from '../../../core/system/synced.ts'
import { findLabel, MANIFEST_FILE, type Manifest } from './manifest.ts'
import { type ModelSource, refuseSource, type SourceFile } from './model-files.ts'
import { labelTaken, modelExists } from './refusals.ts'

/** A revision whose files are staged. */
export interface NewRevision extends Omit<ModelSource, 'files'> {
  files: StoredFile[]
  origin: Origin
  defaults?: ModelDefaults
  becomesDefault?: boolean
}

const REPORTS_PER_SECOND = 10

/** Brings files into a new staging folder and computes their digests. Leaves nothing behind if it fails. */
export async function stageFiles(
  models: string,
  sources: SourceFile[],
  waiting: Waiting & { allowHardLink: boolean; onCopied?: OnCopied }
): Promise<{ folder: string; files: StoredFile[] }> {
  const { signal, onProgress, allowHardLink, onCopied } = waiting
  const total = sources.reduce((sum, file) => sum + file.size, 0)
  const folder = await createStagingFolder(models)
  try {
    await writeFile(join(folder, REVISION_MARK), MARK_TEXT)
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
        // People edit small descriptive files like config.json in place, but not in a download's folder.
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
    // A manifest that survives a power failure must not name files that did not.
    for (const path of folders) await synced(path, 'folder')
    return { folder, files }
  } catch (error) {
    await discardFolder(models, folder)
    throw error
  }
}

/** Returns one digest (64 hex digits) for a set of files, independent of their names, and the model's defaults. */
export function contentDigest(files: StoredFile[], defaults?: ModelDefaults): string {
  const lines = [...files].sort((a, b) => (a.path < b.path ? -1 : 1)).map(file => `${file.role} ${file.sha256}\n`)
  // Sort object keys, so that equal defaults have equal JSON.
  const inOrder = (_: string, value: unknown) =>
    isObject(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value
  if (defaults) lines.push(`defaults ${JSON.stringify(defaults, inOrder)}\n`)
  return createHash('sha256').update(lines.join('')).digest('hex')
}

/** Small enough that hashing one piece does not block the event loop. */
const READ_BYTES = 512 * 1024

interface TransferOptions {
  signal?: AbortSignal
  onBytes?: (bytes: number) => void
  onCopy?: () => void
  /** Whether the store may share the file with its other owner. */
  allowHardLink: boolean
  /** The SHA-256 if it was just computed: a linked file is then not read again. */
  sha256?: string
  /** The file that was inspected. Another file in its place is refused. */
  identity?: FileIdentity
  /** The folder for copies, and the bytes needed there for this and the following files. */
  space: { folder: string; bytes: number }
}

/**
 * Puts a file into the store by reflink, hard link or copy, in that order. Returns its SHA-256 (64 hex digits).
 *
 * A hard link costs no space, but the file then has two owners: writing to the original *in place* changes the model
 * too. Downloaders and converters replace files instead, which leaves the link intact. The digest in the manifest shows
 * whether the content is still the imported one.
 *
 * @throws CorralError `insufficient_storage` with both numbers if a copy does not fit
 */
export async function transferFile(source: string, target: string, options: TransferOptions): Promise<string> {
  options.signal?.throwIfAborted()
  const bring = async (file: FileHandle) => {
    if (await linkFile(file, source, target, options)) {
      if (options.sha256 !== undefined) {
        options.onBytes?.((await stat(target)).size)
        return options.sha256
      }
      // Read the store's own file: a reflink no longer follows its source.
      return await readDigest(createReadStream(target, { highWaterMark: READ_BYTES }), undefined, options)
    }
    options.onCopy?.()
    await requireSpace(options.space.folder, options.space.bytes, 'The model needs', 'models')
    const copy = await open(target, 'wx', 0o644)
    try {
      const pieces = file.createReadStream({ autoClose: false, highWaterMark: READ_BYTES })
      const digest = await readDigest(pieces, copy, options)
      await copy.sync()
      return digest
    } finally {
      await copy.close()
    }
  }
  return await withRegularFile(source, bring, options.identity)
}

async function linkFile(file: FileHandle, source: string, target: string, { allowHardLink, sha256 }: TransferOptions) {
  // Systems refuse a reflink with a dozen different codes.
  const reflink = () =>
    copyFile(pathOfOpened(file, source), target, constants.COPYFILE_FICLONE_FORCE | constants.COPYFILE_EXCL)
  // A hard link fails on another file system, on one without links, or for another user's file. A copy still works.
  const hardLink = async () => {
    // Wine links across drives, and such a link keeps its name until the file is closed, even after its removal.
    const { dev } = await stat(dirname(target), { bigint: true })
    if (dev !== (await file.stat({ bigint: true })).dev) throw new Error(`${source} is on another disk`)
    await link(source, target)
    // Linking by name: another file may have replaced it since it was opened, and must not become part of a model.
    if (isSameFile(await stat(target, { bigint: true }), await file.stat({ bigint: true }))) return
    throw new Error(`${source} is another file now`)
  }
  const both = allowHardLink ? [reflink, hardLink] : [reflink]
  // A reflink is read for its digest anyway. With a known digest, the hard link is the very file it describes.
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

async function readDigest(pieces: AsyncIterable<Buffer>, copy: FileHandle | undefined, options: TransferOptions) {
  const hash = createHash('sha256')
  for await (const piece of pieces) {
    options.signal?.throwIfAborted()
    hash.update(piece)
    await copy?.appendFile(piece)
    options.onBytes?.(piece.length)
  }
  return hash.digest('hex')
}

/**
 * Decides the label and the defaults under which files are stored.
 *
 * A model made by a client replaces the model made under the same name. It replaces a model from elsewhere only if the
 * files stay the same. Files from elsewhere keep the defaults of the variant that they replace, and never take a label
 * that was made as a tag for a model without a tag.
 *
 * @param name its variant, if given, is the label
 * @param variants those of the model, the default one first
 * @returns `present` is the variant of this label, which it replaces. With `becomesDefault`, the bare name refers to
 * it.
 * @throws CorralError `model_exists` naming the existing model
 */
export function decidePlacement(
  name: ModelName,
  { files, label, origin, metadata, defaults, becomesDefault = false }: NewRevision,
  variants: StoredVariant[]
) {
  if (origin.kind !== 'made') {
    const other = conflictingVariant(variants, origin, label)
    if (other) throw modelExists(other)
    const named = findLabel(variants, label)
    const isOthersTag = named?.origin.tag !== undefined && origin.tag === undefined && name.variant === undefined
    const present = isOthersTag ? variants.find(({ origin: { from } }) => from === origin.from) : named
    const hasOwnTag = origin.tag !== undefined && present?.origin.tag === undefined
    if (present && hasOwnTag && !haveSameContent(present.files, files)) throw labelTaken(present)
    const placed = withDefaults(files, metadata, defaults ?? present?.defaults)
    return {
      label: present?.label ?? freeLabel(label, variants),
      origin: present && hasOwnTag ? present.origin : origin,
      ...placed,
      present,
      becomesDefault
    }
  }
  const tag = name.variant
  const replaced = replacedByMade(tag, variants)
  const isMade = replaced?.origin.kind === 'made'
  if (replaced && !isMade && !haveSameContent(replaced.files, files)) throw modelExists(replaced)
  // This label belongs to the model that was made without a tag, known by the bare name.
  if (isMade && replaced.origin.tag === undefined && tag !== undefined) throw labelTaken(replaced)
  return {
    label: replaced?.label ?? tag ?? freeLabel(label, variants),
    origin: replaced && !isMade ? replaced.origin : { ...origin, ...(tag !== undefined && { tag }) },
    ...withDefaults(files, metadata, defaults),
    present: replaced,
    becomesDefault: tag === undefined
  }
}

/** Returns the variant that a made model replaces: the one made under the same tag, or without a tag. */
function replacedByMade(tag: string | undefined, variants: StoredVariant[]): StoredVariant | undefined {
  if (tag !== undefined) return findLabel(variants, tag)
  const [first] = variants
  if (first && first.origin.kind !== 'made') return first
  return variants.find(({ origin }) => origin.kind === 'made' && origin.tag === undefined)
}

function freeLabel(wanted: string, variants: StoredVariant[]): string {
  let label = wanted
  for (let number = 2; findLabel(variants, label); number++) label = `${wanted}-${number}`
  return label
}

/** Returns the model's metadata with these defaults, which may include another chat template. */
function withDefaults(files: StoredFile[], metadata: ModelMetadata, defaults: ModelDefaults | undefined) {
  const digest = contentDigest(files, defaults)
  const chatTemplate = defaults?.template
  if (chatTemplate === undefined) return { metadata, defaults, digest }
  const others = metadata.capabilities.filter(capability => capability !== 'tools' && capability !== 'thinking')
  const byTemplate = others.includes('completion') ? templateCapabilities(chatTemplate) : []
  return { metadata: { ...metadata, chatTemplate, capabilities: [...others, ...byTemplate] }, defaults, digest }
}

/** For files that are not yet, or no longer, part of a model. Owners' names cannot begin with a dot. */
export const STAGING_FOLDER = '.staging'
/** A file in each revision's folder that shows corral made it. Only such folders are deleted at a start. */
export const REVISION_MARK = '.corral-revision'
const MARK_TEXT = 'Made by corral. A folder with this file that no manifest.json names is deleted when corral starts.\n'

/** Creates an empty folder on the disk of the models. */
export async function createStagingFolder(models: string): Promise<string> {
  const folder = join(models, STAGING_FOLDER, randomBytes(8).toString('hex'))
  await mkdir(folder, { recursive: true })
  return folder
}

/** Moves a folder to the staging folder, then deletes its files. A crash in between leaves a staging folder. */
export async function discardFolder(models: string, folder: string): Promise<void> {
  let toDelete = folder
  if (basename(dirname(folder)) !== STAGING_FOLDER) {
    const aside = join(models, STAGING_FOLDER, randomBytes(8).toString('hex'))
    try {
      await mkdir(dirname(aside), { recursive: true })
      await rename(folder, aside)
      toDelete = aside
    } catch {
      // The folder is gone, or open files on Windows or a full disk prevent the move. Delete it in place.
    }
  }
  await rm(toDelete, { recursive: true, force: true, maxRetries: 3 })
}

/** Returns a model's folder, in the spelling that exists, and creates it if necessary. @throws CorralError */
export async function modelFolder(models: string, name: ModelName): Promise<string> {
  let folder = models
  for (const segment of [name.owner, name.name]) {
    const present = (await namesIn(folder)).find(entry => entry.toLowerCase() === segment.toLowerCase())
    folder = join(folder, present ?? segment)
    // Recursive: the removal of another model may just have deleted the owner's empty folder.
    if (!present) await mkdir(folder, { recursive: true })
    if (!(await lstat(folder)).isDirectory()) {
      throw new CorralError(
        'invalid_request',
        `${folder} is not a folder but a file or a symbolic link, and models are stored inside ${models} only. ` +
          'Move it away, or use another name.',
        { param: 'name' }
      )
    }
  }
  return folder
}

/** Moves a staged folder beside the manifest, which does not name it yet. @returns the folder name used */
export async function placeRevision(staged: string, model: string, name: string): Promise<string> {
  const taken = new Set(await readdir(model))
  let free = name
  for (let number = 2; taken.has(free); number++) free = `${name}-${number}`
  await rename(staged, join(model, free))
  return free
}

/** Writes a model's manifest atomically and durably, or deletes it and with it the model. Only this takes effect. */
export async function saveManifest(model: string, manifest: Manifest | undefined): Promise<void> {
  const path = join(model, MANIFEST_FILE)
  if (manifest) await withShortLock(path, () => writeJsonFile(path, manifest))
  // A lock would fail on a full disk.
  else await rm(path, { force: true })
  await synced(model, 'folder')
}

export async function removeEmptyFolders(model: string): Promise<void> {
  for (const folder of [model, dirname(model)]) {
    try {
      await rmdir(folder)
    } catch (error) {
      if (isSystemError(error, 'ENOTEMPTY', 'EEXIST', 'ENOENT')) return
      throw error
    }
  }
}
