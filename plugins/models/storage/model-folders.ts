import { randomBytes } from 'node:crypto'
import { lstat, mkdir, open, readdir, rename, rm, rmdir, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { CorralError, isSystemError, whenMissing } from '../../../core/errors.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { writeJsonFile } from '../../../core/system/json-file.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import { MANIFEST_FILE, type Manifest } from './manifest.ts'

/** For files that are not yet, or no longer, part of a model. Owners' names cannot begin with a dot. */
export const STAGING_FOLDER = '.staging'
/** A file in each revision's folder that shows corral made it. Only such folders are deleted at a start. */
export const REVISION_MARK = '.corral-revision'
const MARK_TEXT = 'Made by corral. A folder with this file that no manifest.json names is deleted when corral starts.\n'

/** Creates an empty folder, marked as a revision, on the disk of the models. */
export async function createStagingFolder(models: string): Promise<string> {
  const folder = join(models, STAGING_FOLDER, randomBytes(8).toString('hex'))
  await mkdir(folder, { recursive: true })
  await writeFile(join(folder, REVISION_MARK), MARK_TEXT)
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

/** Writes a model's manifest atomically and durably. This makes the change take effect. */
export async function writeManifest(model: string, manifest: Manifest): Promise<void> {
  await withShortLock(join(model, MANIFEST_FILE), async () => {
    await writeJsonFile(join(model, MANIFEST_FILE), manifest)
    await syncFolder(model)
  })
}

/** Deletes the manifest, and with it the model. Takes no lock, which would fail on a full disk. */
export async function removeManifest(model: string): Promise<void> {
  await rm(join(model, MANIFEST_FILE), { force: true })
  await syncFolder(model)
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

/** Makes a change in a folder survive a power failure, on systems that can open folders. */
export async function syncFolder(folder: string): Promise<void> {
  if (process.platform === 'win32') return
  // If the user deleted it, there is nothing to sync.
  const handle = await open(folder, 'r').catch(whenMissing)
  try {
    await handle?.sync()
  } finally {
    await handle?.close()
  }
}

/** Deletes a folder that no manifest names when its last user releases it. */
export class RevisionFolders {
  readonly #models: string
  readonly #log: FastifyBaseLogger
  readonly #inTurn: (key: string, work: () => Promise<void>) => void
  readonly #users = new Map<string, number>()
  /** Folders that no manifest names any longer, with the keys of their models. */
  readonly #retired = new Map<string, string>()

  /** @param inTurn runs work on a model's folder after the changes of that model in progress */
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
      // The model is removed anyway. Only its disk space is not free yet.
      this.#log.warn(error, `The files in ${directory} cannot be deleted now; corral tries again at its next start`)
    }
  }
}
