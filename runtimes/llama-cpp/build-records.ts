import { createHash } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { readdir, rm, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import { type Static, type TSchema, Type } from 'typebox'
import type { Build } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { isSystemError, messageOf } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { readJsonFile, readJsonFileSync, writeJsonFile } from '../../core/system/json-file.ts'
import { fits } from '../../core/system/schema-check.ts'
import { type QueryOptions, queryVersion } from '../llama-server/server-facts.ts'
import { fileDigest } from './prove.ts'

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

/** As much of a record as must be there. */
const RecordSchema = Type.Unsafe<BuildRecord>(
  Type.Object({
    format: Type.Literal(FORMAT),
    provenAt: Type.String(),
    build: Type.Object({
      id: Type.String(),
      directory: Type.String(),
      executables: Type.Object({ server: Type.String() })
    })
  })
)

export interface BuildFailure {
  reason: string
  /** ISO 8601 UTC. */
  at: string
  /** The machine as it was then, see `machineFingerprint`: another driver may be its cure. */
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
  await writeJsonFile(join(directory, record.build.id + SUFFIX), record, { pretty: true })
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
    const record = (await readJsonFile(path, RecordSchema))?.value
    if (record && record.build.id + SUFFIX === name) records.push(record)
    else await rm(path, { force: true })
  }
  return records.sort((a, b) => b.provenAt.localeCompare(a.provenAt))
}

/** The builds written down, the latest first, at once: for reports, which do not wait. */
export function recordsNow(directory: string): BuildRecord[] {
  try {
    const names = readdirSync(directory).filter(name => name.endsWith(SUFFIX))
    const records = names.map(name => readJsonFileSync(join(directory, name), RecordSchema)?.value)
    return records.filter(record => record !== undefined).sort((a, b) => b.provenAt.localeCompare(a.provenAt))
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return []
    throw error
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
  options: QueryOptions
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
    await queryVersion(build.executables.server, options)
    return undefined
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason
    return messageOf(error)
  }
}

const FAILED_ATTEMPTS = 'failed-attempts.json'
/** Milliseconds after which a source may have something better to offer. */
const FORGOTTEN_AFTER = 24 * 60 * 60 * 1000

const FailedAttemptSchema = Type.Object({
  source: Type.String(),
  /** The source and its settings, for people: with other settings it is worth another try. */
  description: Type.String(),
  runtime: Type.String(),
  reason: Type.String(),
  /** ISO 8601 UTC. */
  at: Type.String(),
  /** See `machineFingerprint`. */
  machine: Type.String()
})
/** A source brought or made a kind of build that did not work on this machine. */
export type FailedAttempt = Static<typeof FailedAttemptSchema>

/**
 * What decides whether builds work on a machine, in 16 hex digits: the same as long as processor, GPUs, drivers and
 * libraries are. Pure.
 */
export function machineFingerprint({ platform, arch, glibc, cpu, gpus, libraries }: Hardware): string {
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
export function isRecent(failure: { at: string; machine: string }, machine: string, now = Date.now()): boolean {
  return failure.machine === machine && now - Date.parse(failure.at) < FORGOTTEN_AFTER
}

/** What failed so far, so that a start of corral need not download or compile it again only to see it fail. */
export async function readFailedAttempts(directory: string): Promise<FailedAttempt[]> {
  return (await readJsonFile(join(directory, FAILED_ATTEMPTS), Type.Array(FailedAttemptSchema)))?.value ?? []
}

/** Writes down that an attempt failed; a former failure of the same source for the same kind is replaced. */
export async function addFailedAttempt(directory: string, attempt: FailedAttempt): Promise<void> {
  const others = (await readFailedAttempts(directory)).filter(
    ({ source, runtime }) => source !== attempt.source || runtime !== attempt.runtime
  )
  await writeJsonFile(join(directory, FAILED_ATTEMPTS), [...others, attempt], { pretty: true })
}

const SELECTION = 'selection.json'

const SelectionSchema = Type.Object({
  /** Absent: the best one of the ranking. */
  selected: Type.Optional(Type.String()),
  /** What an upgrade returns to. */
  previous: Type.Optional(Type.String()),
  /** What an upgrade brought and no engine has been started on yet. */
  trial: Type.Optional(Type.String()),
  /** Builds that are not to be tried again by themselves, since they did not work here. */
  failed: Type.Optional(Type.Record(Type.String(), Type.Unsafe<BuildFailure>(Type.Object({}))))
})
/** Which build is used, as `corral runtime use` and `corral runtime upgrade` wrote it down. Builds by their ids. */
export type Selection = Static<typeof SelectionSchema>

/** What is written down now. What somebody broke by hand counts as absent: the best of the ranking is used. */
export function selectionIn(directory: string): Selection {
  const properties: Record<string, TSchema> = SelectionSchema.properties
  const fields = Object.entries(readJsonFileSync(join(directory, SELECTION), Type.Object({}))?.value ?? {})
  return Object.fromEntries(fields.filter(([name, value]) => properties[name] && fits(properties[name], value)))
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
  const selection = change(selectionIn(directory))
  await writeJsonFile(join(directory, SELECTION), selection, { pretty: true })
  return selection
}
