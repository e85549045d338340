import { constants } from 'node:fs'
import { access, lstat, mkdir, open, readFile, realpath, rename, rm, rmdir, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import { isSystemError, whenMissing } from '../../core/errors.ts'
import { withShortLock } from '../../core/system/short-lock.ts'
import { failure } from '../command-failure.ts'
import { applyChanges, type Change, type ChangedFile, NotEditable, undoChanges } from './settings-edit.ts'

/*
 * Changes files of the user so that they can be restored. A record in the agent's folder has the text of each file
 * before the change. It is written before the file, so that a killed process leaves either the old file or one that
 * can be restored.
 */

const RECORD = 'changed.json'

/** Changes the file, after recording how to undo it. */
export async function makeChange(folder: string, changes: Parameters<typeof planChange>[1]): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 })
  await withShortLock(folder, async () => {
    const { path, before, after, records } = await planChange(folder, changes)
    if (after === before) return
    await writeFileAtomic(join(folder, RECORD), JSON.stringify(records), { mode: 0o600 })
    await mkdir(dirname(path), { recursive: true })
    await replaceFile(path, after)
  })
}

/** Returns the text that the file gets, and how to undo that. @throws CommandFailure if it cannot be changed */
export async function planChange(folder: string, { file, list }: { file: string; list: Change[] }) {
  const path = await realpath(file).catch(async error => {
    if (!isSystemError(error, 'ENOENT')) throw error
    const isLink = await lstat(file).catch(() => undefined)
    if (isLink) throw failure(`${file} is a link to a file that does not exist. Create that file or remove the link.`)
    return file
  })
  const before = await readText(path)
  const records = await readRecords(folder)
  const earlier = records.find(record => record.path === path)
  const { text: after, record } = editing(path, () =>
    applyChanges(earlier ? undoChanges(before, earlier).text : before, list, earlier)
  )
  const folders = [...(earlier?.folders ?? []), ...(await missingFolders(dirname(path)))]
  const others = records.filter(other => other !== earlier)
  return { path, before, after, records: [...others, { path, folders, ...record }] }
}

/** Edits a text, and names its file in errors. */
function editing<Result>(path: string, edit: () => Result): Result {
  try {
    return edit()
  } catch (error) {
    if (!(error instanceof NotEditable)) throw error
    throw failure(`${path} cannot be changed: ${error.message}. Correct the file and try again.`, error)
  }
}

async function missingFolders(folder: string): Promise<string[]> {
  if (await stat(folder).catch(() => undefined)) return []
  return [...(await missingFolders(dirname(folder))), folder]
}

/** @returns undefined if there is no file. @throws CommandFailure if its bytes would not survive */
async function readText(path: string): Promise<string | undefined> {
  try {
    const bytes = await readFile(path)
    await access(path, constants.W_OK)
    const text = bytes.toString('utf8')
    if (Buffer.from(text).equals(bytes)) return text
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    if (!isSystemError(error, 'EACCES', 'EPERM', 'EROFS')) throw error
    throw failure(`${path} is read-only. Use --print, and make the change where the file comes from.`, error)
  }
  throw failure(`${path} is not UTF-8. Save it as UTF-8 and try again.`)
}

async function readRecords(folder: string): Promise<ChangedFile[]> {
  return JSON.parse((await readFile(join(folder, RECORD), 'utf8').catch(whenMissing)) ?? '[]')
}

/** Replaces a file at once. Its mode and owner stay. */
async function replaceFile(path: string, text: string): Promise<void> {
  const old = await stat(path).catch(() => undefined)
  // The same name each time: the lock keeps others away, and a killed process leaves at most this one.
  const temporary = `${path}.corral-tmp`
  await rm(temporary, { force: true })
  const file = await open(temporary, 'wx', 0o600)
  try {
    await file.writeFile(text)
    if (old) {
      if (process.getuid?.() === 0) await file.chown(old.uid, old.gid)
      await file.chmod(old.mode & 0o7777)
    }
    await file.sync()
  } finally {
    await file.close()
  }
  await rename(temporary, path)
}

/**
 * Restores all files that were changed for an agent, and removes corral's own. Later changes of the user stay.
 * @returns what was done, a line for each file
 */
export async function undoLaunch(folder: string): Promise<string[]> {
  if (!(await stat(folder).catch(() => undefined))) return []
  return await withShortLock(folder, async () => {
    const lines: string[] = []
    for (const record of await readRecords(folder)) {
      const { path, folders } = record
      const current = await readText(path)
      const { text, kept } = editing(path, () => undoChanges(current, record))
      await rm(`${path}.corral-tmp`, { force: true })
      if (text === undefined) await rm(path, { force: true })
      else if (text !== current) await replaceFile(path, text)
      for (const created of folders.toReversed()) {
        await rmdir(created).catch(error => {
          if (!isSystemError(error, 'ENOTEMPTY', 'EEXIST', 'ENOENT')) throw error
        })
      }
      const whose = kept.length > 0 ? `, except ${kept.join(', ')}, which somebody has changed since` : ''
      if (current === undefined) lines.push(`${path} no longer exists`)
      else lines.push(text === undefined ? `removed ${path}` : `restored ${path}${whose}`)
    }
    await rm(folder, { recursive: true, force: true })
    return lines
  })
}
