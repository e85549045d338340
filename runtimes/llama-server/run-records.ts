import { rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import { messageOf } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../core/system/json-file.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { FOLDER_PREFIX } from './address.ts'

const RunRecordSchema = Type.Object({
  /** The engine's private folder. */
  folder: Type.String(),
  pid: Type.Optional(Type.Number()),
  /** As `processStartTime` gives it, since process ids are used again. */
  startTime: Type.Optional(Type.String())
})
/** What a started engine leaves behind should this process be killed. */
export type RunRecord = Static<typeof RunRecordSchema>

export interface RunLog {
  warn(object: object, message: string): void
}

const SUFFIX = '.engine.json'
/** Milliseconds that a killed process gets to disappear. */
const KILL_LIMIT = 2000

/** Writes down an engine so that the next start can clean up after it; call again when more is known. */
export async function writeRunRecord(runDirectory: string, id: string, record: RunRecord): Promise<void> {
  await writeJsonFile(join(runDirectory, id + SUFFIX), record)
}

/** Removes an engine's private folder and its record. */
export async function removeRunRecord(runDirectory: string, id: string, folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true })
  await rm(join(runDirectory, id + SUFFIX), { force: true })
}

async function killStray({ pid, startTime }: RunRecord): Promise<boolean> {
  if (pid === undefined || startTime === undefined || startTime === 'unknown') return false
  // In doubt it is another process, which must live.
  const runs = async () => (await processStartTime(pid)) === startTime
  if (!(await runs())) return false
  process.kill(pid, 'SIGKILL')
  for (let waited = 0; waited < KILL_LIMIT && (await runs()); waited += 20) await sleep(20)
  return true
}

/**
 * Cleans up after a gateway that was killed: ends engines that it left and removes their folders. Only for the owner of
 * the data directory that `runDirectory` belongs to, before it starts engines. Returns how many engines it ended.
 */
export async function reapStrayEngines(runDirectory: string, log: RunLog): Promise<number> {
  let ended = 0
  for (const name of (await namesIn(runDirectory)).filter(name => name.endsWith(SUFFIX))) {
    const path = join(runDirectory, name)
    try {
      const record = (await readJsonFile(path, RunRecordSchema))?.value
      if (!record || !basename(record.folder).startsWith(FOLDER_PREFIX))
        log.warn({ path }, 'An unreadable record of an engine is removed.')
      else {
        if (await killStray(record)) {
          ended++
          log.warn({ pid: record.pid }, 'Ended a llama-server that an earlier corral left running.')
        }
        await rm(record.folder, { recursive: true, force: true })
      }
      await rm(path, { force: true })
    } catch (error) {
      log.warn({ path, reason: messageOf(error) }, 'Could not clean up after an engine of an earlier corral.')
    }
  }
  return ended
}
