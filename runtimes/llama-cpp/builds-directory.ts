import { randomUUID } from 'node:crypto'
import { mkdir, readdir, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { check, lock } from 'proper-lockfile'
import { isSystemError } from '../../core/errors.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { readRecords } from './build-records.ts'

export interface LockLog {
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

/** Folder for unfinished work in the builds' directory; what is whole in it is reused. */
export const WORK_FOLDER = 'work'
/** Milliseconds after which the lock of a process that died is taken over. */
const LOCK_STALE = 10_000
const LOCK_RETRY = 500

/** Unfinished folders of this process: an earlier one may have had the same id, as in containers. */
const own = new Set<string>()

/** A folder to make something in, in the builds' directory; renamed when it is whole. */
export async function unfinishedFolder(directory: string): Promise<string> {
  const folder = join(directory, `unfinished-${process.pid}-${randomUUID().slice(0, 8)}`)
  own.add(folder)
  await mkdir(folder, { recursive: true })
  return folder
}

/** Whether somebody still works in a folder: converters are fetched without the lock. */
async function isUsed(folder: string): Promise<boolean> {
  const pid = Number(/^unfinished-(\d+)-/.exec(basename(folder))?.[1])
  return pid === process.pid ? own.has(folder) : (await processStartTime(pid)) !== undefined
}

/**
 * Keeps other processes from building in the same directory at the same time; waits for the one that does.
 * @param onWait called when it has to wait
 */
export async function lockDirectory(
  directory: string,
  signal: AbortSignal,
  log: LockLog,
  onWait?: () => void
): Promise<() => Promise<void>> {
  await mkdir(directory, { recursive: true })
  for (let told = false; ; ) {
    signal.throwIfAborted()
    try {
      let lost: Error | undefined
      const release = await lock(directory, {
        stale: LOCK_STALE,
        onCompromised: error => {
          lost = error
          log.warn({ reason: error.message }, 'The lock of the llama.cpp builds was lost; this process slept too long.')
        }
      })
      return async () => {
        if (!lost) await release()
      }
    } catch (error) {
      if (!isSystemError(error, 'ELOCKED')) throw error
      if (!told) {
        log.info({ directory }, 'Another process is getting a llama.cpp build into this directory; waiting for it.')
        onWait?.()
      }
      told = true
      while (await check(directory, { stale: LOCK_STALE })) {
        await sleep(LOCK_RETRY, undefined, { signal }).catch(() => signal.throwIfAborted())
      }
    }
  }
}

/** Removes what an interrupted search left: folders that are neither a recorded build nor work that goes on or is reused. */
export async function removeLeftovers(directory: string): Promise<void> {
  const kept = new Set((await readRecords(directory)).map(record => record.build.directory))
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name)
    if (!entry.isDirectory() || kept.has(path)) continue
    if (entry.name.startsWith(WORK_FOLDER) || entry.name.startsWith('converter-') || (await isUsed(path))) continue
    await rm(path, { recursive: true, force: true })
  }
}
