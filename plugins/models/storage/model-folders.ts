import { randomBytes } from 'node:crypto'
import { type FileHandle, lstat, mkdir, open, readdir, rename, rm, rmdir, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { writeJsonFile } from '../../../core/system/json-file.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import type { Manifest } from './manifest.ts'

export const MANIFEST_FILE = 'manifest.json'
/** Holds what is not yet, or no longer, part of a model. No owner's name begins with a dot. */
export const STAGING_FOLDER = '.staging'
/** A file in each revision's folder that shows that corral made it: only such folders are ever deleted at a start. */
export const REVISION_MARK = '.corral-revision'
const MARK_TEXT = 'Made by corral. A folder with this file that no manifest.json names is deleted when corral starts.\n'

/** Makes an empty folder, marked as a revision, on the disk of the models. */
export async function createStagingFolder(models: string): Promise<string> {
  const folder = join(models, STAGING_FOLDER, randomBytes(8).toString('hex'))
  await mkdir(folder, { recursive: true })
  await writeFile(join(folder, REVISION_MARK), MARK_TEXT)
  return folder
}

/** Deletes a folder of the store: at once out of the way, then its files. A crash between the two leaves a staging folder. */
export async function discardFolder(models: string, folder: string): Promise<void> {
  let toDelete = folder
  if (basename(dirname(folder)) !== STAGING_FOLDER) {
    const aside = join(models, STAGING_FOLDER, randomBytes(8).toString('hex'))
    try {
      await mkdir(dirname(aside), { recursive: true })
      await rename(folder, aside)
      toDelete = aside
    } catch {
      // It is gone already, or Windows does not move it because files in it are open, or the disk is too full for one
      // more folder: what can be deleted in its place is.
    }
  }
  await rm(toDelete, { recursive: true, force: true, maxRetries: 3 })
}

/**
 * The folder of a model, made where it does not exist. An owner or model that is there in another case is reused, so
 * that two spellings are one model on every file system.
 * @throws CorralError `invalid_request` when a link or a file is in the way
 */
export async function modelFolder(models: string, name: ModelName): Promise<string> {
  let folder = models
  for (const segment of [name.owner, name.name]) {
    const present = (await namesIn(folder)).find(entry => entry.toLowerCase() === segment.toLowerCase())
    folder = join(folder, present ?? segment)
    // Recursive: another model's removal may just have taken the owner's folder, which was empty.
    if (!present) await mkdir(folder, { recursive: true })
    if (!(await lstat(folder)).isDirectory()) {
      throw new CorralError(
        'invalid_request',
        `${folder} is no folder but a file or a symbolic link, and models are kept inside ${models} only. ` +
          'Move it away, or use another name.',
        { param: 'name' }
      )
    }
  }
  return folder
}

/**
 * Moves a staged folder beside the manifest, where no manifest names it yet.
 * @param name wanted folder name; a number is added when it is taken
 * @returns the name it got
 */
export async function placeRevision(staged: string, model: string, name: string): Promise<string> {
  const taken = new Set(await readdir(model))
  let free = name
  for (let number = 2; taken.has(free); number++) free = `${name}-${number}`
  await rename(staged, join(model, free))
  return free
}

/** Writes a model's manifest atomically and durably. From here on the model is what it says. */
export async function writeManifest(model: string, manifest: Manifest): Promise<void> {
  await withShortLock(join(model, MANIFEST_FILE), async () => {
    await writeJsonFile(join(model, MANIFEST_FILE), manifest)
    await syncFolder(model)
  })
}

/**
 * Takes the manifest away. From here on there is no model. It takes no lock, which would need space: on a full disk this
 * is what helps.
 */
export async function removeManifest(model: string): Promise<void> {
  await rm(join(model, MANIFEST_FILE), { force: true })
  await syncFolder(model)
}

/** Removes a model's folder, and its owner's, as far as nothing is left in them. */
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

/** Makes a change in a folder outlive a power failure, where the system lets folders be opened for that. */
export async function syncFolder(folder: string): Promise<void> {
  if (process.platform === 'win32') return
  let handle: FileHandle
  try {
    handle = await open(folder, 'r')
  } catch (error) {
    // Deleted by hand: there is nothing to outlive.
    if (isSystemError(error, 'ENOENT')) return
    throw error
  }
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** The folders of revisions that are in use: one that no manifest names any longer stays as long as it is. */
export class RevisionFolders {
  readonly #models: string
  readonly #log: FastifyBaseLogger
  readonly #inTurn: (key: string, work: () => Promise<void>) => void
  /** Number of users of each folder in use. */
  readonly #users = new Map<string, number>()
  /** Those that no manifest names any longer, and the keys of their models. */
  readonly #retired = new Map<string, string>()

  /** @param inTurn does work on a model's folder after the changes of that model that are going on */
  constructor(models: string, log: FastifyBaseLogger, inTurn: (key: string, work: () => Promise<void>) => void) {
    this.#models = models
    this.#log = log
    this.#inTurn = inTurn
  }

  /** Keeps a folder until the returned function is called. */
  hold(directory: string): () => void {
    this.#users.set(directory, (this.#users.get(directory) ?? 0) + 1)
    let released = false
    return () => {
      if (released) return
      released = true
      const users = this.#users.get(directory)! - 1
      this.#users.set(directory, users)
      if (users > 0) return
      this.#users.delete(directory)
      const key = this.#retired.get(directory)
      this.#retired.delete(directory)
      // An import may be about to use the model's folder, which this could find empty and remove.
      if (key !== undefined) this.#inTurn(key, () => this.retire(key, directory))
    }
  }

  /** Deletes a folder that no manifest names any longer, now or when it is no longer in use. */
  async retire(key: string, directory: string): Promise<void> {
    if (this.#users.has(directory)) {
      this.#retired.set(directory, key)
      return
    }
    try {
      await discardFolder(this.#models, directory)
      await removeEmptyFolders(join(directory, '..'))
    } catch (error) {
      // The model is gone all the same; only its space is not free yet.
      this.#log.warn(error, `The files in ${directory} cannot be deleted now; corral tries again at its next start`)
    }
  }
}
