import { mkdir, readFile, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import writeFileAtomic from 'write-file-atomic'
import { messageOf } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { FOLDER_PREFIX } from './address.ts'

/** What a started engine leaves behind should this process be killed. */
export interface RunRecord {
  /** The engine's private folder. */
  folder: string
  pid?: number
  /** As `processStartTime` gives it, since process ids are given again. */
  startTime?: string
}

export interface RunLog {
  warn(object: object, message: string): void
}

const SUFFIX = '.engine.json'
/** Milliseconds that a killed process gets to disappear. */
const KILL_LIMIT = 2000

/** Writes down an engine so that the next start can clean up after it; call again when more is known. */
export async function writeRunRecord(runDirectory: string, id: string, record: RunRecord): Promise<void> {
  await mkdir(runDirectory, { recursive: true })
  await writeFileAtomic(join(runDirectory, id + SUFFIX), JSON.stringify(record))
}

/** Removes an engine's private folder and its record. */
export async function removeRunRecord(runDirectory: string, id: string, folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true })
  await rm(join(runDirectory, id + SUFFIX), { force: true })
}

function parseRecord(text: string): RunRecord | undefined {
  try {
    const record = JSON.parse(text)
    return typeof record?.folder === 'string' && basename(record.folder).startsWith(FOLDER_PREFIX) ? record : undefined
  } catch {
    return undefined
  }
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
      const record = parseRecord(await readFile(path, 'utf8'))
      if (record === undefined) log.warn({ path }, 'An unreadable record of an engine is removed.')
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
