import type { Build, BuildSource, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { messageOf } from '../../core/errors.ts'
import { type BuildRecord, damageOf, isRecent, markFailed, readRecords, removeRecord } from './build-records.ts'
import { askDevices } from './prove.ts'
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

/** Whether a recorded build is of a kind; older records do not name it. */
export function isOfKind({ build }: BuildRecord, kind: { name: string; kind: Build['kind'] }): boolean {
  return build.runtime === undefined ? build.kind === kind.kind : build.runtime === kind.name
}

/** A recorded build as it is now, if it still works; else why not, and its record is mended accordingly. */
export async function checkRecord(
  record: BuildRecord,
  runtime: RuntimeDescriptor | undefined,
  { directory, hardware, machine, log, signal }: RecordedDeps
): Promise<Build | string> {
  const { id, directory: folder, executables } = record.build
  const failure = (reason: string) => ({ reason, at: new Date().toISOString(), machine })
  const damage = await damageOf(record, { signal, log, environment: runtime?.environment?.(hardware) })
  if (damage !== undefined) {
    // What the user brought is his to remove.
    if (record.installed) await markFailed(directory, id, failure(damage))
    else await removeRecord(directory, record)
    return `${folder}, proven on ${record.provenAt}, is not reused: ${damage}`
  }
  const build = { ...record.build, ...(runtime && { runtime: runtime.name }) }
  if (!runtime || !isForGpus(runtime.kind)) return build
  try {
    // Its devices are asked for each time: drivers come and go.
    return { ...build, devices: await askDevices(executables.server, { signal, log, hardware, runtime }) }
  } catch (error) {
    if (signal.aborted) throw signal.reason
    await markFailed(directory, id, failure(messageOf(error)))
    return `${folder}, proven on ${record.provenAt}, does not work any more: ${messageOf(error)}`
  }
}

/** The number of the release that a build is of; 0 where its id does not tell. */
function releaseNumber({ build }: BuildRecord): number {
  return Number(/-b(\d+)-/.exec(build.id)?.[1] ?? 0)
}

/**
 * What is used first: what was not installed beside, then the newest release, then what was proven last. Pure; for
 * records with those proven last first.
 */
export function byPreference(records: readonly BuildRecord[]): BuildRecord[] {
  const installed = (record: BuildRecord) => Number(record.installed ?? false)
  return [...records].sort((a, b) => installed(a) - installed(b) || releaseNumber(b) - releaseNumber(a))
}

/**
 * The newest recorded build of a kind that fits and still works, told as what `source` brought. What the user installed
 * beside the others is not used by that, unless there is no other; what failed lately is left out when failures are
 * heeded.
 */
export async function findRecorded(
  source: BuildSource,
  runtime: RuntimeDescriptor,
  fits: (record: BuildRecord) => boolean,
  heedFailures: boolean,
  attempts: SearchAttempts,
  deps: RecordedDeps
): Promise<Build | undefined> {
  const fitting = (await readRecords(deps.directory)).filter(record => isOfKind(record, runtime) && fits(record))
  for (const record of byPreference(fitting)) {
    const { failure, build, provenAt } = record
    if (failure && heedFailures && isRecent(failure, deps.machine)) {
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
