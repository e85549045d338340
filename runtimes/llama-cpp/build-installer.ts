import { rm } from 'node:fs/promises'
import type { Build, BuildCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import {
  type BuildRecord,
  changeSelection,
  damageOf,
  machineFingerprint,
  markFailed,
  readRecords,
  removeRecord,
  selectionIn,
  writeRecord
} from './build-records.ts'
import type { LockLog } from './builds-directory.ts'
import { type ArchiveRequest, archiveDigest, archiveSuffix, unpackBuild } from './sources/archive.ts'
import { type FoundArchives, type Releases, releaseId } from './sources/release.ts'

export interface InstallerDeps {
  /** Where builds and their records lie. */
  directory: string
  log: LockLog & { debug(object: object, message: string): void }
  hardware(): Promise<Hardware>
  releases: Pick<Releases, 'find' | 'fetch' | 'followsLatest'>
  /** Proves a build that corral brought. @throws Error with the reason */
  prove(candidate: BuildCandidate, signal: AbortSignal): Promise<Build>
  /** Whether an engine runs on this build. */
  inUse(id: string): boolean
}

/**
 * Installs builds in the builds' directory, whose lock the caller holds. A build is recorded once it is proven, and
 * without a record it is never used: a kill at any moment leaves only files that the next run removes.
 */
export function createBuildInstaller({ directory, log, hardware, releases, prove, inUse }: InstallerDeps) {
  /** Records that a build does not work on this machine, so that an upgrade does not try it again. */
  async function recordFailure(id: string, reason: string): Promise<void> {
    const failure = { reason, at: new Date().toISOString(), machine: machineFingerprint(await hardware()) }
    await markFailed(directory, id, failure)
    await changeSelection(directory, selection => ({ ...selection, failed: { ...selection.failed, [id]: failure } }))
  }

  async function saveRecord(build: Build): Promise<Build> {
    await writeRecord(directory, build, { installed: true })
    const { [build.id]: known, ...failed } = selectionIn(directory).failed ?? {}
    if (known) await changeSelection(directory, selection => ({ ...selection, failed }))
    return build
  }

  /** Proves a new build; removes it if it does not work. */
  async function proveNew(
    candidate: BuildCandidate,
    { signal, onProgress }: Required<Waiting>,
    advice = ''
  ): Promise<Build> {
    onProgress({ phase: 'proving', subject: candidate.id })
    let failure: unknown
    try {
      const build = await saveRecord(await prove(candidate, signal))
      log.info({ build: build.id, version: build.version }, `llama.cpp ${build.id} is installed and works.`)
      return build
    } catch (error) {
      failure = error
    }
    await rm(candidate.directory, { recursive: true, force: true })
    signal.throwIfAborted()
    const reason = messageOf(failure)
    await recordFailure(candidate.id, reason)
    throw new CorralError(
      'runtime_missing',
      `${candidate.id} was removed because it does not work here: ${reason}${advice}`,
      { cause: failure }
    )
  }

  /** The build if it is installed already; a damaged one is removed. */
  async function findIntact(fits: (build: Build) => boolean, waiting: Required<Waiting>): Promise<Build | undefined> {
    const record = (await readRecords(directory)).find(({ build }) => fits(build))
    if (record === undefined) return undefined
    const { build } = record
    const damage = await damageOf(record, { signal: waiting.signal, log })
    if (damage === undefined && record.failure) return await proveAgain(record, waiting)
    if (damage === undefined) return record.installed ? build : await saveRecord(build)
    if (inUse(build.id)) {
      throw new CorralError(
        'runtime_in_use',
        `${build.id} is damaged (${damage}), but an engine still runs on it. Stop its models, then install it again.`
      )
    }
    log.warn({ build: build.id, damage }, `${build.id} is damaged and will be installed again: ${damage}`)
    await removeRecord(directory, record)
    return undefined
  }

  /**
   * Proves an installed build again.
   * @throws CorralError `runtime_missing` if it no longer works; it stays, marked as failed
   */
  async function proveAgain(record: BuildRecord, { signal, onProgress }: Required<Waiting>): Promise<Build> {
    const { version: _, commit: __, digest: ___, devices: ____, warnings: _____, ...candidate } = record.build
    onProgress({ phase: 'proving', subject: candidate.id })
    try {
      const damage = await damageOf(record, { signal, log })
      if (damage !== undefined) throw new Error(damage)
      return await saveRecord(await prove(candidate, signal))
    } catch (error) {
      signal.throwIfAborted()
      await recordFailure(candidate.id, messageOf(error))
      throw new CorralError(
        'runtime_missing',
        `${candidate.id} no longer works here: ${messageOf(error).replace(/\.?$/, '.')} ` +
          `To reinstall it: corral runtime remove ${candidate.id}, then corral runtime install.`,
        { cause: error }
      )
    }
  }

  return {
    proveAgain,
    recordFailure,

    /** Downloads, unpacks and proves a release's archives; returns the installed build if it is intact. */
    async fromRelease(runtime: RuntimeDescriptor, found: FoundArchives, waiting: Required<Waiting>): Promise<Build> {
      const id = releaseId(found.tag, runtime)
      const there = await findIntact(build => build.id === id, waiting)
      if (there) return there
      return await proveNew(await releases.fetch(found, runtime, waiting), waiting)
    },

    /** Unpacks and proves a local archive; returns the installed build if it is from the same archive. */
    async fromArchive(
      request: ArchiveRequest,
      { expected, ...hints }: { expected?: string; tag?: string; runtime?: RuntimeDescriptor },
      waiting: Required<Waiting>
    ): Promise<Build> {
      const digest = await archiveDigest(request.archive, expected, waiting.signal)
      log.info({ archive: request.archive, sha256: digest }, `${request.archive} has the SHA-256 ${digest}.`)
      const same = ({ id, source }: Build) => source === 'archive' && id.endsWith(`-${archiveSuffix(digest)}`)
      const there = await findIntact(same, waiting)
      if (there) return there
      const candidate = await unpackBuild(request, { ...hints, digest }, directory, waiting)
      const lacksLibraries = candidate.kind === 'cuda' && (request.companions ?? []).length === 0
      return await proveNew(
        candidate,
        waiting,
        lacksLibraries ? ' Its libraries may be missing: also pass the cudart-… archive of the same version.' : ''
      )
    }
  }
}
