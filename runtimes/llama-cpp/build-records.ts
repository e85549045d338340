import { readdirSync, readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, rm, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import type { Build } from '../../core/contracts/builds.ts'
import { isSystemError, messageOf } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { type AskOptions, askVersion, fileDigest } from './prove.ts'

const SUFFIX = '.build.json'
const FORMAT = 1

/** A build that was proven once, as it is written down. */
export interface BuildRecord {
  format: typeof FORMAT
  /** ISO 8601 UTC. */
  provenAt: string
  build: Build
  /** Size in bytes of each file in the build's folder; empty for builds that are not corral's own. */
  files: Record<string, number>
  /** What llama-server's file looked like: when nothing of it has changed, its digest need not be made again. */
  server: { size: number; mtimeMs: number }
  /** Whether the user asked for this very build: then it goes only when the user removes it. */
  installed?: boolean
  /** Why it did not work when it was used or proven last; it serves only when nothing better can be had. */
  failure?: BuildFailure
}

export interface BuildFailure {
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** The machine as it was then, see `machineMark`: another driver may be its cure. */
  machine: string
}

/** Whether a build lies in corral's own folder, so that corral may remove it. */
export function isOwn(build: Pick<Build, 'directory'>, directory: string): boolean {
  const inside = relative(directory, build.directory)
  return (
    inside !== '' && inside !== '..' && !inside.startsWith(`..${sep}`) && join(directory, inside) === build.directory
  )
}

async function filesOf(directory: string): Promise<Record<string, number>> {
  const files: Record<string, number> = {}
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    if (!entry.isFile() && !entry.isSymbolicLink()) continue
    files[entry.name] = (await stat(join(directory, entry.name))).size
  }
  return files
}

/** Writes a proven build down, whole or not at all. A failure written down before is forgotten. */
export async function writeRecord(
  directory: string,
  build: Build,
  { installed }: Pick<BuildRecord, 'installed'> = {}
): Promise<BuildRecord> {
  const { size, mtimeMs } = await stat(build.executables.server)
  const record: BuildRecord = {
    format: FORMAT,
    provenAt: new Date().toISOString(),
    build,
    files: isOwn(build, directory) ? await filesOf(build.directory) : {},
    server: { size, mtimeMs },
    ...(installed && { installed })
  }
  await save(directory, record)
  return record
}

async function save(directory: string, record: BuildRecord): Promise<void> {
  await mkdir(directory, { recursive: true })
  await writeFileAtomic(join(directory, record.build.id + SUFFIX), `${JSON.stringify(record, null, 2)}\n`)
}

/** Writes down that a recorded build does not work here. Does nothing when there is no such record. */
export async function markFailed(directory: string, id: string, failure: BuildFailure): Promise<void> {
  const record = (await readRecords(directory)).find(({ build }) => build.id === id)
  if (record) await save(directory, { ...record, failure })
}

/** Bytes of a recorded build's files; 0 when it is not corral's own. */
export function sizeOf({ files }: BuildRecord): number {
  return Object.values(files).reduce((sum, size) => sum + size, 0)
}

/** The builds written down, the latest first. Unreadable records are removed. */
export async function readRecords(directory: string): Promise<BuildRecord[]> {
  const records: BuildRecord[] = []
  for (const name of (await namesIn(directory)).filter(name => name.endsWith(SUFFIX))) {
    const path = join(directory, name)
    const record = parseRecord(await readFile(path, 'utf8'))
    if (record && record.build.id + SUFFIX === name) records.push(record)
    else await rm(path, { force: true })
  }
  return records.sort((a, b) => b.provenAt.localeCompare(a.provenAt))
}

/** The builds written down, the latest first, at once: for reports, which do not wait. */
export function recordsNow(directory: string): BuildRecord[] {
  try {
    const names = readdirSync(directory).filter(name => name.endsWith(SUFFIX))
    const records = names.map(name => parseRecord(readFileSync(join(directory, name), 'utf8')))
    return records.filter(record => record !== undefined).sort((a, b) => b.provenAt.localeCompare(a.provenAt))
  } catch (error) {
    // One may be removed at this moment.
    if (isSystemError(error, 'ENOENT')) return []
    throw error
  }
}

function parseRecord(text: string): BuildRecord | undefined {
  try {
    const record = JSON.parse(text)
    const valid =
      record.format === FORMAT &&
      typeof record.provenAt === 'string' &&
      typeof record.build.id === 'string' &&
      typeof record.build.directory === 'string' &&
      typeof record.build.executables.server === 'string'
    return valid ? record : undefined
  } catch {
    return undefined
  }
}

/** Removes a record, and the build's folder where it is corral's own. */
export async function removeRecord(directory: string, { build }: BuildRecord): Promise<void> {
  // The record first: a folder without one is nothing that anybody relies on.
  await rm(join(directory, build.id + SUFFIX), { force: true })
  if (isOwn(build, directory)) await rm(build.directory, { recursive: true, force: true })
}

/** Why a build that was proven once cannot be used any more; undefined when it still is what it was, and runs. */
export async function damageOf(
  { build, files, server }: BuildRecord,
  options: AskOptions
): Promise<string | undefined> {
  try {
    for (const [name, size] of Object.entries(files)) {
      const now = (await stat(join(build.directory, name))).size
      if (now !== size) return `${name} has ${now} bytes instead of ${size}`
    }
    const now = await stat(build.executables.server)
    if (now.size !== server.size || now.mtimeMs !== server.mtimeMs) {
      if ((await fileDigest(build.executables.server)) !== build.digest) return 'llama-server has changed'
    }
    for (const path of Object.values(build.executables)) await stat(path)
    if (build.converter) await stat(join(build.converter.directory, 'convert_hf_to_gguf.py'))
    await askVersion(build.executables.server, options)
    return undefined
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason
    return messageOf(error)
  }
}
