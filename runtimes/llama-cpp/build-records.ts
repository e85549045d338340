import { createHash } from 'node:crypto'
import { existsSync, readdirSync, rmSync } from 'node:fs'
import { readdir, rm, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import { type Static, type TSchema, Type } from 'typebox'
import type { Build } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { messageOf } from '../../core/errors.ts'
import { readJsonFile, readJsonFileSync, writeJsonFile } from '../../core/system/json-file.ts'
import { fits } from '../../core/system/schema-check.ts'
import { type QueryOptions, queryVersion } from '../llama-server/server-facts.ts'
import { fileDigest } from './prove.ts'

const SUFFIX = '.build.json'
const FORMAT = 1

/** A proven build, as it is recorded in a file. */
export interface BuildRecord {
  format: typeof FORMAT
  /** ISO 8601 UTC. */
  provenAt: string
  build: Build
  /** Size in bytes of each file in the build's folder; empty for builds that are not corral's own. */
  files: Record<string, number>
  /** If llama-server's file still has these, its digest is not computed again. */
  server: { size: number; mtimeMs: number }
  /** Whether the user installed this build: then only the user removes it. */
  installed?: boolean
  /** Why it did not work when it was last used or proven: then it is used only if nothing better is available. */
  failure?: BuildFailure
}

/** The fields that a record must have. */
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
  /** The machine at that time, see `machineFingerprint`: another driver may fix it. */
  machine: string
}

/** Whether a build is in corral's own folder, so that corral may remove it. */
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

/** Records a proven build atomically, without its earlier failure. */
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

/** Marks a recorded build as not working here. Does nothing without a record. */
export async function markFailed(directory: string, id: string, failure: BuildFailure): Promise<void> {
  const record = readRecords(directory).find(({ build }) => build.id === id)
  if (record) await save(directory, { ...record, failure })
}

/** The recorded builds, those proven last first. Removes unreadable records. */
export function readRecords(directory: string): BuildRecord[] {
  const names = existsSync(directory) ? readdirSync(directory) : []
  const records: BuildRecord[] = []
  for (const name of names.filter(name => name.endsWith(SUFFIX))) {
    const path = join(directory, name)
    const record = readJsonFileSync(path, RecordSchema)?.value
    if (record && record.build.id + SUFFIX === name) records.push(record)
    else rmSync(path, { force: true })
  }
  return records.sort((a, b) => b.provenAt.localeCompare(a.provenAt))
}

/** Removes a record, and the build's folder if it is corral's own. */
export async function removeRecord(directory: string, { build }: BuildRecord): Promise<void> {
  // The record first: a folder without one is never used.
  await rm(join(directory, build.id + SUFFIX), { force: true })
  if (isOwn(build, directory)) await rm(build.directory, { recursive: true, force: true })
}

/** Why a recorded build cannot be used any more; undefined if it is unchanged and starts. */
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
    options.signal?.throwIfAborted()
    return messageOf(error)
  }
}

const FAILED_ATTEMPTS = 'failed-attempts.json'
/** Milliseconds after which a source may have a better build. */
const FORGOTTEN_AFTER = 24 * 60 * 60 * 1000

const FailedAttemptSchema = Type.Object({
  source: Type.String(),
  /** The source and its settings, for people: other settings are tried again. */
  description: Type.String(),
  runtime: Type.String(),
  reason: Type.String(),
  /** ISO 8601 UTC. */
  at: Type.String(),
  /** See `machineFingerprint`. */
  machine: Type.String()
})
/** A kind of build from a source that did not work on this machine. */
export type FailedAttempt = Static<typeof FailedAttemptSchema>

/**
 * Identifies what decides whether builds work on a machine: processor, GPUs, drivers and libraries. 16 hex digits. Pure.
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

/** Whether a failure still counts: it is recent, and the machine is the same. Pure. */
export function isRecent(failure: { at: string; machine: string }, machine: string, now = Date.now()): boolean {
  return failure.machine === machine && now - Date.parse(failure.at) < FORGOTTEN_AFTER
}

/** What failed, so that a start of corral does not download or compile it again to see it fail. */
export async function readFailedAttempts(directory: string): Promise<FailedAttempt[]> {
  return (await readJsonFile(join(directory, FAILED_ATTEMPTS), Type.Array(FailedAttemptSchema)))?.value ?? []
}

/** Records that an attempt failed; replaces an earlier failure of the same source for the same kind. */
export async function addFailedAttempt(directory: string, attempt: FailedAttempt): Promise<void> {
  const others = (await readFailedAttempts(directory)).filter(
    ({ source, runtime }) => source !== attempt.source || runtime !== attempt.runtime
  )
  await writeJsonFile(join(directory, FAILED_ATTEMPTS), [...others, attempt], { pretty: true })
}

const SELECTION = 'selection.json'

const SelectionSchema = Type.Object({
  /** Chosen by the user; absent is the best one of the ranking. */
  selected: Type.Optional(Type.String()),
  /** The fallback of an upgrade. */
  previous: Type.Optional(Type.String()),
  /** Installed by an upgrade; no engine has started on it yet. */
  trial: Type.Optional(Type.String()),
  /** Builds that did not work here: no upgrade tries them again. */
  failed: Type.Optional(Type.Record(Type.String(), Type.Unsafe<BuildFailure>(Type.Object({}))))
})
/** Which build is used, as set by `corral runtime use` and `corral runtime upgrade`. Builds by their ids. */
export type Selection = Static<typeof SelectionSchema>

/** The recorded selection. Invalid fields, edited by hand, count as absent. */
export function readSelection(directory: string): Selection {
  const properties: Record<string, TSchema> = SelectionSchema.properties
  const fields = Object.entries(readJsonFileSync(join(directory, SELECTION), Type.Object({}))?.value ?? {})
  return Object.fromEntries(fields.filter(([name, value]) => properties[name] && fits(properties[name], value)))
}

/** Changes fields of the recorded selection; undefined removes one. */
export async function changeSelection(directory: string, changes: Selection): Promise<void> {
  await writeJsonFile(join(directory, SELECTION), { ...readSelection(directory), ...changes }, { pretty: true })
}

/** Records that a build does not work here, so that no upgrade tries it again. */
export async function recordFailure(directory: string, id: string, failure: BuildFailure): Promise<void> {
  await markFailed(directory, id, failure)
  await changeSelection(directory, { failed: { ...readSelection(directory).failed, [id]: failure } })
}
