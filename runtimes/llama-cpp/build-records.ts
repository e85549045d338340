import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, rm, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import writeFileAtomic from 'write-file-atomic'
import type { Build } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
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

const FAILED_ATTEMPTS = 'failed-attempts.json'
/** Milliseconds after which a source may have something better to offer. */
const FORGOTTEN_AFTER = 24 * 60 * 60 * 1000

/** A source brought or made a kind of build that did not work on this machine. */
export interface FailedAttempt {
  source: string
  /** The source and its settings in words: with other settings it is worth another try. */
  description: string
  runtime: string
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** See `machineMark`. */
  machine: string
}

/**
 * What decides whether builds work on a machine, in 16 hex digits: the same as long as processor, GPUs, drivers and
 * libraries are. Pure.
 */
export function machineMark({ platform, arch, glibc, cpu, gpus, libraries }: Hardware): string {
  const devices = gpus.map(({ id, name, architecture, driver, apis, usable }) => {
    return [id, name, architecture, driver, apis, usable]
  })
  const facts = JSON.stringify([
    platform,
    arch,
    glibc,
    cpu.model,
    [...cpu.features].sort(),
    devices,
    [...libraries].sort()
  ])
  return createHash('sha256').update(facts).digest('hex').slice(0, 16)
}

/** Whether a failure still says something: it was lately, and on the machine as it is. Pure. */
export function stillCounts(failure: { at: string; machine: string }, machine: string, now = Date.now()): boolean {
  return failure.machine === machine && now - Date.parse(failure.at) < FORGOTTEN_AFTER
}

/** What failed so far, so that a start of corral need not download or compile it again only to see it fail. */
export async function readFailedAttempts(directory: string): Promise<FailedAttempt[]> {
  try {
    const list: unknown = JSON.parse(await readFile(join(directory, FAILED_ATTEMPTS), 'utf8'))
    return Array.isArray(list) ? list.filter(entry => typeof entry?.source === 'string') : []
  } catch (error) {
    if (isSystemError(error, 'ENOENT') || error instanceof SyntaxError) return []
    throw error
  }
}

/** Writes down that an attempt failed; a former failure of the same source for the same kind is replaced. */
export async function noteFailedAttempt(directory: string, attempt: FailedAttempt): Promise<void> {
  const others = (await readFailedAttempts(directory)).filter(
    ({ source, runtime }) => source !== attempt.source || runtime !== attempt.runtime
  )
  await mkdir(directory, { recursive: true })
  await writeFileAtomic(join(directory, FAILED_ATTEMPTS), `${JSON.stringify([...others, attempt], null, 2)}\n`)
}

const SELECTION = 'selection.json'

/** A release that did not work here when it was to be used. */
export interface FailedVersion {
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** The machine as it was then, see `machineMark`: another driver may be its cure. */
  machine: string
}

/** Which build is used, as `corral runtime use` and `corral runtime upgrade` wrote it down. Builds by their ids. */
export interface Selection {
  /** Absent: the best one of the ranking. */
  selected?: string
  /** What an upgrade returns to. */
  previous?: string
  /** What an upgrade brought and no engine has been started on yet. */
  trial?: string
  /** Builds that are not to be tried again by themselves. */
  failed?: Record<string, FailedVersion>
}

/** What is written down now; nothing where there is none, or what is there cannot be read. */
export function selectionIn(directory: string): Selection {
  let text: string
  try {
    text = readFileSync(join(directory, SELECTION), 'utf8')
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return {}
    throw error
  }
  try {
    const { selected, previous, trial, failed } = JSON.parse(text) as Record<string, unknown>
    return {
      ...(typeof selected === 'string' && { selected }),
      ...(typeof previous === 'string' && { previous }),
      ...(typeof trial === 'string' && { trial }),
      ...(typeof failed === 'object' && failed !== null && { failed: failed as Record<string, FailedVersion> })
    }
  } catch {
    // It is written atomically: who broke it by hand gets the best of the ranking.
    return {}
  }
}

/** Which build the user chose, and which one an upgrade returns to; see `Selection`. */
export async function readSelection(directory: string): Promise<Selection> {
  return selectionIn(directory)
}

/** Writes down what `change` makes of it, whole or not at all. */
export async function changeSelection(
  directory: string,
  change: (selection: Selection) => Selection
): Promise<Selection> {
  await mkdir(directory, { recursive: true })
  const selection = change(selectionIn(directory))
  await writeFileAtomic(join(directory, SELECTION), `${JSON.stringify(selection, null, 2)}\n`)
  return selection
}
