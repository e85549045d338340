import { createHash, randomUUID } from 'node:crypto'
import { existsSync, readdirSync, rmSync } from 'node:fs'
import { mkdir, readdir, rm, stat } from 'node:fs/promises'
import { basename, join, relative, sep } from 'node:path'
import { type Static, type TSchema, Type } from 'typebox'
import type { Build } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { errorMessage } from '../../core/errors.ts'
import { DIGEST_LIST, fileDigest, recordDigests } from '../../core/system/file-digests.ts'
import { readJsonFileSync, writeJsonFile } from '../../core/system/json-file.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { fits } from '../../core/system/schema-check.ts'
import { withShortLock } from '../../core/system/short-lock.ts'
import { type QueryOptions, queryVersion } from '../llama-server/server-facts.ts'

/** Folder for work in progress among the builds. Complete parts of it are reused. */
export const WORK_FOLDER = 'work'
const RECORD = '.build.json'
const FAILED_ATTEMPTS = 'failed-attempts.json'
const SELECTION = 'selection.json'
/** Milliseconds after which a source may have a better build. */
const FORGOTTEN_AFTER = 24 * 60 * 60 * 1000
/** Another process then takes over the lock of a dead process. */
const LOCK_STALE_MS = 10_000

const FailureSchema = Type.Object({
  reason: Type.String(),
  /** ISO 8601 UTC. */
  at: Type.String(),
  /** The machine at that time, see `machineFingerprint`. Another driver may fix the failure. */
  machine: Type.String()
})
export type BuildFailure = Static<typeof FailureSchema>

export interface BuildRecord {
  format: 1
  provenAt: string
  build: Build
  /** Size in bytes of each file in the build's folder. Empty for builds that corral did not make. */
  files: Record<string, number>
  /** If the file of llama-server still has this size and time, its digest is not computed again. */
  server: { size: number; mtimeMs: number }
  /** Whether the user installed this build. If so, only the user removes it. */
  installed?: boolean
  /** Why the build failed the last time. It is then used only if nothing better is available. */
  failure?: BuildFailure
}

const RecordSchema = Type.Unsafe<BuildRecord>(
  Type.Object({
    format: Type.Literal(1),
    provenAt: Type.String(),
    build: Type.Object({
      id: Type.String(),
      directory: Type.String(),
      executables: Type.Object({ server: Type.String() })
    })
  })
)

const FailedAttemptSchema = Type.Object({
  source: Type.String(),
  /** The source and its settings, human-readable. After a change of settings the source is tried again. */
  description: Type.String(),
  runtime: Type.String(),
  ...FailureSchema.properties
})
type FailedAttempt = Static<typeof FailedAttemptSchema>

const SelectionSchema = Type.Object({
  /** Chosen by the user. If absent, the best build of the ranking is used. */
  selected: Type.Optional(Type.String()),
  previous: Type.Optional(Type.String()),
  /** Installed by an upgrade. No engine has started on it yet. */
  trial: Type.Optional(Type.String()),
  /** Builds that did not work here. No upgrade tries them again. */
  failed: Type.Optional(Type.Record(Type.String(), FailureSchema))
})
/** Which build is used, as set by `corral runtime use` and `corral runtime upgrade`. Builds are named by their ids. */
export type Selection = Static<typeof SelectionSchema>

export interface BuildsLog {
  debug(object: object, message: string): void
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

/** Unfinished folders of this process. In a container, an earlier process may have had the same id. */
const unfinished = new Set<string>()

/** Creates a folder for unfinished work in the builds' directory. It is renamed when the work is complete. */
export async function unfinishedFolder(directory: string): Promise<string> {
  const folder = join(directory, `unfinished-${process.pid}-${randomUUID().slice(0, 8)}`)
  unfinished.add(folder)
  await mkdir(folder, { recursive: true })
  return folder
}

/** Whether a process still uses an unfinished folder. Converters are fetched without the lock. */
async function isUsed(folder: string): Promise<boolean> {
  const pid = Number(/^unfinished-(\d+)-/.exec(basename(folder))?.[1])
  return pid === process.pid ? unfinished.has(folder) : (await processStartTime(pid)) !== undefined
}

export class BuildsDirectory {
  readonly path: string

  constructor(path: string) {
    this.path = path
  }

  /** Returns the recorded builds, the one verified last first. Removes unreadable records, unless they are kept. */
  records(keepUnreadable = false): BuildRecord[] {
    const names = existsSync(this.path) ? readdirSync(this.path) : []
    const records: BuildRecord[] = []
    for (const name of names.filter(name => name.endsWith(RECORD))) {
      const path = join(this.path, name)
      const record = readJsonFileSync(path, RecordSchema)?.value
      if (record && record.build.id + RECORD === name) records.push(record)
      else if (!keepUnreadable) rmSync(path, { force: true })
    }
    return records.sort((a, b) => b.provenAt.localeCompare(a.provenAt))
  }

  async save(build: Build, { installed }: Pick<BuildRecord, 'installed'> = {}): Promise<void> {
    const { size, mtimeMs } = await stat(build.executables.server)
    const files: BuildRecord['files'] = {}
    for (const entry of this.owns(build) ? await readdir(build.directory, { withFileTypes: true }) : []) {
      if ((!entry.isFile() && !entry.isSymbolicLink()) || entry.name === DIGEST_LIST) continue
      files[entry.name] = (await stat(join(build.directory, entry.name))).size
    }
    // A build that is verified again keeps the digests of its installation.
    const isListed = !this.owns(build) || existsSync(join(build.directory, DIGEST_LIST))
    if (!isListed) await recordDigests(build.directory)
    const provenAt = new Date().toISOString()
    await this.#write({ format: 1, provenAt, build, files, server: { size, mtimeMs }, ...(installed && { installed }) })
  }

  async #write(record: BuildRecord): Promise<void> {
    await writeJsonFile(join(this.path, record.build.id + RECORD), record, { pretty: true })
  }

  async markFailed(id: string, failure: BuildFailure): Promise<void> {
    const record = this.records().find(({ build }) => build.id === id)
    if (record) await this.#write({ ...record, failure })
  }

  async remove({ build }: BuildRecord): Promise<void> {
    // The record is removed first, because a folder without a record is never used.
    await rm(join(this.path, build.id + RECORD), { force: true })
    if (this.owns(build)) await rm(build.directory, { recursive: true, force: true })
  }

  /** Whether a build is in this directory, so that corral may remove it. */
  owns(build: Pick<Build, 'directory'>): boolean {
    const inside = relative(this.path, build.directory)
    const leaves = inside === '' || inside === '..' || inside.startsWith(`..${sep}`)
    return !leaves && join(this.path, inside) === build.directory
  }

  /** Returns the recorded selection. Invalid fields, edited by hand, are ignored. */
  selection(): Selection {
    const properties: Record<string, TSchema> = SelectionSchema.properties
    const fields = Object.entries(readJsonFileSync(join(this.path, SELECTION), Type.Object({}))?.value ?? {})
    return Object.fromEntries(fields.filter(([name, value]) => properties[name] && fits(properties[name], value)))
  }

  async select(changes: Selection): Promise<void> {
    await writeJsonFile(join(this.path, SELECTION), { ...this.selection(), ...changes }, { pretty: true })
  }

  /** Returns the recorded failures, so that the next start does not download or compile the same builds in vain. */
  failedAttempts(): FailedAttempt[] {
    return readJsonFileSync(join(this.path, FAILED_ATTEMPTS), Type.Array(FailedAttemptSchema))?.value ?? []
  }

  async addFailedAttempt(attempt: FailedAttempt): Promise<void> {
    const { source, runtime } = attempt
    const others = this.failedAttempts().filter(other => other.source !== source || other.runtime !== runtime)
    await writeJsonFile(join(this.path, FAILED_ATTEMPTS), [...others, attempt], { pretty: true })
  }

  /** Runs work while no other process does such work. Calls `onWait` before waiting for the others. */
  async locked<T>(
    work: () => Promise<T>,
    { signal, log }: { signal: AbortSignal; log: BuildsLog },
    onWait?: () => void
  ): Promise<T> {
    await mkdir(this.path, { recursive: true })
    return await withShortLock(this.path, work, {
      stale: LOCK_STALE_MS,
      maxWait: Number.POSITIVE_INFINITY,
      signal,
      onWait: () => {
        const text = 'Waiting for another process that is installing a llama.cpp build in this directory.'
        log.info({ directory: this.path }, text)
        onWait?.()
      },
      onLost: () => log.warn({}, 'The lock of the llama.cpp builds was lost: this process was suspended for too long.')
    })
  }

  /** Removes the leftovers of interrupted searches: folders that are neither recorded, nor in use, nor reusable. */
  async removeLeftovers(): Promise<void> {
    const kept = new Set(this.records().map(record => record.build.directory))
    for (const entry of await readdir(this.path, { withFileTypes: true })) {
      const path = join(this.path, entry.name)
      if (!entry.isDirectory() || kept.has(path)) continue
      if (entry.name.startsWith(WORK_FOLDER) || entry.name.startsWith('converter-') || (await isUsed(path))) continue
      await rm(path, { recursive: true, force: true })
    }
  }
}

/** Returns why a recorded build cannot be used any more, or undefined if it is unchanged and starts. */
export async function findDamage({ build, files, server }: BuildRecord, options: QueryOptions) {
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
    return errorMessage(error)
  }
}

/** Identifies everything that decides whether builds work on a machine, as 16 hex digits. Pure. */
export function machineFingerprint({ platform, arch, glibc, cpu, gpus, libraries }: Hardware): string {
  const devices = gpus.map(gpu => [gpu.id, gpu.name, gpu.architecture, gpu.driver, gpu.apis, gpu.usable])
  const facts = [platform, arch, glibc, cpu.model, [...cpu.features].sort(), devices, [...libraries].sort()]
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 16)
}

export function failureNow(error: unknown, hardware: Hardware): BuildFailure {
  return { reason: errorMessage(error), at: new Date().toISOString(), machine: machineFingerprint(hardware) }
}

export function isRecent(failure: Pick<BuildFailure, 'at' | 'machine'>, machine: string, now = Date.now()): boolean {
  return failure.machine === machine && Math.abs(now - Date.parse(failure.at)) < FORGOTTEN_AFTER
}
