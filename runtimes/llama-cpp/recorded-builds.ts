import type { Build, BuildSource, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { messageOf } from '../../core/errors.ts'
import { type BuildRecord, damageOf, isRecent, markFailed, readRecords, removeRecord } from './build-records.ts'
import { usableDevices } from './prove.ts'
import { isForGpus } from './ranking.ts'
import type { SearchAttempts, SearchLog } from './search-report.ts'

export interface RecordedDeps {
  directory: string
  hardware: Hardware
  /** See `machineFingerprint`. */
  machine: string
  log: SearchLog
  signal: AbortSignal
}

/** Whether a recorded build is of a kind; old records do not name theirs. */
export function isOfKind({ build }: BuildRecord, kind: { name: string; kind: Build['kind'] }): boolean {
  return build.runtime === undefined ? build.kind === kind.kind : build.runtime === kind.name
}

/** A recorded build if it still works; else the reason, and its record is updated or removed. */
export async function checkRecord(
  record: BuildRecord,
  runtime: RuntimeDescriptor | undefined,
  { directory, hardware, machine, log, signal }: RecordedDeps
): Promise<Build | string> {
  const { id, directory: folder, executables } = record.build
  const failure = (reason: string) => ({ reason, at: new Date().toISOString(), machine })
  const damage = await damageOf(record, { signal, log, environment: runtime?.environment?.(hardware) })
  if (damage !== undefined) {
    // Only the user removes builds that the user installed.
    if (record.installed) await markFailed(directory, id, failure(damage))
    else await removeRecord(directory, record)
    return `${folder}, proven on ${record.provenAt}, is not reused: ${damage}`
  }
  const build = { ...record.build, ...(runtime && { runtime: runtime.name }) }
  if (!runtime || !isForGpus(runtime.kind)) return build
  try {
    // Its devices are listed again each time: drivers may have changed.
    return { ...build, devices: await usableDevices(executables.server, { signal, log, hardware, runtime }) }
  } catch (error) {
    if (signal.aborted) throw signal.reason
    await markFailed(directory, id, failure(messageOf(error)))
    return `${folder}, proven on ${record.provenAt}, does not work any more: ${messageOf(error)}`
  }
}

/** The release number in a build's id; 0 if there is none. */
function releaseNumber({ build }: BuildRecord): number {
  return Number(/-b(\d+)-/.exec(build.id)?.[1] ?? 0)
}

/**
 * Sorts records by preference: builds that the user did not install, then newer releases, then those proven last. Pure;
 * expects those proven last first.
 */
export function byPreference(records: readonly BuildRecord[]): BuildRecord[] {
  const installed = (record: BuildRecord) => Number(record.installed ?? false)
  return [...records].sort((a, b) => installed(a) - installed(b) || releaseNumber(b) - releaseNumber(a))
}

/** The preferred recorded build of a kind that fits and still works, reported as an attempt of `source`. */
export async function findRecorded(
  source: BuildSource,
  runtime: RuntimeDescriptor,
  fits: (record: BuildRecord) => boolean,
  skipFailed: boolean,
  attempts: SearchAttempts,
  deps: RecordedDeps
): Promise<Build | undefined> {
  const fitting = (await readRecords(deps.directory)).filter(record => isOfKind(record, runtime) && fits(record))
  for (const record of byPreference(fitting)) {
    const { failure, build, provenAt } = record
    if (failure && skipFailed && isRecent(failure, deps.machine)) {
      attempts.explain(source, runtime.name, `${build.directory} failed on ${failure.at}: ${failure.reason}`)
      continue
    }
    const found = await checkRecord(record, runtime, deps)
    if (typeof found !== 'string') {
      attempts.settle(source, runtime.name, 'chosen', `${build.directory}, proven on ${provenAt}, still works`)
      return found
    }
    attempts.explain(source, runtime.name, found)
    deps.log.warn({ source: source.name, build: build.id }, `llama.cpp: ${found}`)
  }
  return undefined
}
