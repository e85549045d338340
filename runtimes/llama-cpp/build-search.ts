import { rm } from 'node:fs/promises'
import type {
  Attempt,
  Build,
  BuildCandidate,
  BuildSource,
  RankedCandidate,
  RuntimeDescriptor
} from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import type { OnProgress } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import {
  addFailedAttempt,
  type BuildRecord,
  damageOf,
  isOwn,
  isRecent,
  machineFingerprint,
  readFailedAttempts,
  readRecords,
  removeRecord,
  writeRecord
} from './build-records.ts'
import { lockDirectory, removeLeftovers } from './builds-directory.ts'
import type { Prove } from './prove.ts'
import { usableDevices } from './prove.ts'
import { matchesChoice, positionOf, runtimeOf } from './ranking.ts'
import { checkRecord, findRecorded, isOfKind, type RecordedDeps } from './recorded-builds.ts'
import { missingText, reasonsOf, type SearchAttempts, type SearchLog, trackAttempts } from './search-report.ts'
import { BuildImpossible, isSourceUnavailable } from './sources/source-errors.ts'

export interface SearchDeps {
  /** Tried in this order. */
  sources: readonly BuildSource[]
  /** Folder of the builds and their records. */
  directory: string
  log: SearchLog
  signal: AbortSignal
  onProgress: OnProgress
  /** What was tried; updated during the search. */
  attempts: Attempt[]
  hardware: Hardware
  kinds: readonly RuntimeDescriptor[]
  /** Best first: by what is known already, and by the release's current list of files. */
  ranking: { known: readonly RankedCandidate[]; live(): Promise<readonly RankedCandidate[]> }
  /** Ids of the build that the user chose, and of the fallback of an upgrade. */
  selection: { selected?: string; previous?: string }
  /** Name of the kind to find, instead of the best one. */
  choice?: string
  prove: Prove
}

/** Stands for builds that the user installed, if no configured source provides them. */
const BY_HAND: BuildSource = {
  name: 'installed',
  description: 'builds from "corral runtime install"',
  provide: async () => undefined
}

/**
 * Finds a working build, in this order:
 *
 * 1. the folder that the user names,
 * 2. the build that the user chose with `corral runtime use`,
 * 3. down the ranking, as long as everything better is known to fail: builds that need no network or long work,
 * 4. down the ranking, for each kind: available builds, else what the sources provide, else outdated builds; first
 *    without what failed on this machine lately, then with it,
 * 5. available builds that are not in the ranking, then those that failed lately.
 *
 * @throws CorralError `runtime_missing` with what was tried; the signal's reason if aborted
 */
export async function searchBuild(deps: SearchDeps): Promise<Build> {
  const { sources, directory, log, signal, hardware, kinds, choice, selection, prove } = deps
  const attempts = trackAttempts(deps.attempts, sources, log)
  const machine = machineFingerprint(hardware)
  const slow = sources.filter(source => !source.instant)
  const records = { directory, hardware, machine, log, signal }
  const isFrom = (source: BuildSource, { build }: BuildRecord) => build.source === source.name
  const wanted = (source: BuildSource, { build }: BuildRecord) => source.wants?.(build) ?? true
  const considered = (ranking: readonly RankedCandidate[]) =>
    ranking.filter(candidate => (choice === undefined ? candidate.usable : matchesChoice(choice, candidate)))
  const descriptorOf = ({ runtime }: RankedCandidate) => kinds.find(({ name }) => name === runtime)!
  const failedBefore = (await readFailedAttempts(directory)).filter(attempt => isRecent(attempt, machine))
  const failureOf = (source: BuildSource, { name }: RuntimeDescriptor) =>
    failedBefore.find(attempt => {
      return attempt.source === source.name && attempt.runtime === name && attempt.description === source.description
    })

  /** Lets a source provide a build of a kind, proves it and records it. */
  async function provide(
    source: BuildSource,
    runtime: RuntimeDescriptor
  ): Promise<Build | 'source unavailable' | undefined> {
    const { name, description } = source
    let candidate: BuildCandidate | undefined
    try {
      candidate = await source.provide({
        signal,
        onProgress: deps.onProgress,
        runtime,
        hardware,
        explain: reason => attempts.explain(source, runtime.name, reason)
      })
      if (candidate === undefined) {
        attempts.settle(source, runtime.name, 'unavailable')
        return undefined
      }
      deps.onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const build = await prove(candidate, { own: isOwn(candidate, directory), signal, hardware, runtime })
      await writeRecord(directory, build)
      await removeSuperseded(source, runtime)
      attempts.settle(source, runtime.name, 'chosen', `${build.version}, ${build.origin}`)
      return build
    } catch (error) {
      if (signal.aborted) throw signal.reason
      attempts.settle(source, runtime.name, 'failed', ...reasonsOf(error))
      if (candidate && isOwn(candidate, directory)) await rm(candidate.directory, { recursive: true, force: true })
      if (candidate || error instanceof BuildImpossible) {
        const at = new Date().toISOString()
        const attempt = { source: name, description, runtime: runtime.name, reason: messageOf(error), at, machine }
        await addFailedAttempt(directory, attempt)
      }
      return isSourceUnavailable(error) ? 'source unavailable' : undefined
    }
  }

  /** Removes builds of the same kind that no longer match the source's settings, unless installed or selected by the user. */
  async function removeSuperseded(source: BuildSource, runtime: RuntimeDescriptor): Promise<void> {
    for (const record of await readRecords(directory)) {
      const { id } = record.build
      const needed = record.installed || id === selection.selected || id === selection.previous
      const same = isFrom(source, record) && isOfKind(record, runtime)
      if (same && !wanted(source, record) && !needed) await removeRecord(directory, record)
    }
  }

  /** A build for a candidate of the ranking that needs no network or long work. */
  async function available(
    candidate: RankedCandidate,
    ranking: readonly RankedCandidate[],
    found: readonly InstantBuild[],
    skipFailed: boolean
  ): Promise<Build | undefined> {
    const at = found.find(({ runtime }) => ranking[positionOf(runtime, ranking)] === candidate)
    if (at) return take(at)
    const runtime = descriptorOf(candidate)
    for (const source of slow) {
      const fits = (record: BuildRecord) => isFrom(source, record) && wanted(source, record)
      const build = await findRecorded(source, runtime, fits, skipFailed, attempts, records)
      if (build) return build
    }
    const orphaned = (record: BuildRecord) => !!record.installed && !sources.some(source => isFrom(source, record))
    return await findRecorded(BY_HAND, runtime, orphaned, skipFailed, attempts, records)
  }

  function take({ build, source }: InstantBuild): Build {
    attempts.settle(source, undefined, 'chosen', `${build.version}, ${build.origin}`)
    return build
  }

  /** The build chosen with `corral runtime use`, if it still works. */
  async function selected(): Promise<Build | undefined> {
    const id = selection.selected
    if (id === undefined || choice !== undefined) return undefined
    const record = (await readRecords(directory)).find(({ build }) => build.id === id)
    const runtime = record && runtimeOf(record.build, kinds, deps.ranking.known, hardware.gpus)
    let found: Build | string = 'it is no longer installed'
    if (record?.failure && isRecent(record.failure, machine)) found = `it failed: ${record.failure.reason}`
    else if (record) found = await checkRecord(record, runtime, records)
    if (typeof found === 'string') {
      const text = `llama.cpp: ${id}, chosen with "corral runtime use", cannot be used: ${found}. Using the best other build.`
      log.warn({ build: id }, text)
      return undefined
    }
    const source = sources.find(({ name }) => name === record!.build.source)
    if (source) attempts.settle(source, runtime?.name, 'chosen', `${id} was chosen with "corral runtime use"`)
    return found
  }

  /** Goes down the ranking as long as everything better is known to fail. */
  async function quick(found: readonly InstantBuild[]): Promise<Build | undefined> {
    const ranking = considered(deps.ranking.known)
    for (const candidate of ranking) {
      const build = await available(candidate, ranking, found, true)
      if (build) return build
      if (!slow.every(source => failureOf(source, descriptorOf(candidate)))) return undefined
    }
    return undefined
  }

  /** Goes down the whole ranking, with downloads and compilation. */
  async function thorough(found: readonly InstantBuild[]): Promise<Build | undefined> {
    const ranking = considered(await deps.ranking.live())
    const release = await lockDirectory(directory, signal, log)
    try {
      const down = new Set<BuildSource>()
      const tried = new Set<string>()
      for (const skipFailed of [true, false]) {
        for (const candidate of ranking) {
          const runtime = descriptorOf(candidate)
          // Another process may have made one while this one waited for the lock.
          const known = await available(candidate, ranking, found, skipFailed)
          if (known) return known
          for (const source of candidate.usable ? slow : []) {
            const failure = failureOf(source, runtime)
            const question = `${source.name} ${runtime.name}`
            if (skipFailed && failure) {
              const advice = 'It will be tried again after a day, or when the hardware or its driver changes.'
              attempts.settle(source, runtime.name, 'failed', `it failed on ${failure.at}: ${failure.reason}`, advice)
            } else if (down.has(source)) {
              attempts.settle(source, runtime.name, 'not tried', 'it was unavailable for another kind already')
            } else if (!tried.has(question)) {
              tried.add(question)
              await removeLeftovers(directory)
              const build = await provide(source, runtime)
              if (build === 'source unavailable') down.add(source)
              else if (build) return build
            }
          }
          for (const source of slow) {
            const fits = (record: BuildRecord) => isFrom(source, record)
            const former = await findRecorded(source, runtime, fits, skipFailed, attempts, records)
            if (former) return former
          }
        }
      }
      return undefined
    } finally {
      await release()
    }
  }

  try {
    const found: InstantBuild[] = []
    const skipFailed = choice === undefined
    const instant = { ...records, kinds, ranking: deps.ranking.known, prove, attempts, skipFailed }
    let build: Build | undefined
    const leftOut: BuildSource[] = []
    for (const source of sources.filter(source => source.instant)) {
      deps.onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const at = await tryInstantSource(source, instant).catch(error => {
        // A choice of another kind does not need the folder that the user names.
        if (choice === undefined || signal.aborted) throw error
        return undefined
      })
      if (at === 'failed before') leftOut.push(source)
      else if (at?.required && choice === undefined) build ??= take(at)
      else if (at && (choice === undefined || matchesChoice(choice, at.build))) {
        found.push(at)
        attempts.explain(source, undefined, `${at.build.origin} works, for ${at.runtime?.title ?? at.build.kind}`)
      }
    }
    build ??= await selected()
    build ??= await quick(found)
    if (slow.length > 0) build ??= await thorough(found)
    // It is of no ranked kind, but works.
    if (found[0]) build ??= take(found[0])
    for (const source of build ? [] : leftOut) {
      const at = await tryInstantSource(source, { ...instant, skipFailed: false })
      if (typeof at === 'object') build ??= take(at)
    }
    if (build) return build
  } finally {
    attempts.close(considered(deps.ranking.known))
  }
  throw new CorralError('runtime_missing', missingText(deps.attempts, considered(deps.ranking.known)), {
    details: { attempts: deps.attempts }
  })
}

/** A build of a source that needs neither network nor long work. */
export interface InstantBuild {
  build: Build
  source: BuildSource
  /** Its kind. */
  runtime: RuntimeDescriptor | undefined
  /** Whether the user chose exactly this build. */
  required: boolean
}

export interface InstantDeps extends RecordedDeps {
  kinds: readonly RuntimeDescriptor[]
  ranking: readonly RankedCandidate[]
  prove: Prove
  attempts: SearchAttempts
  /** Whether to skip a build that failed lately. */
  skipFailed: boolean
}

/**
 * Gets and proves the build of an instant source; `failed before` if it was skipped.
 * @throws CorralError `runtime_missing` if the user chose it and it does not work
 */
export async function tryInstantSource(
  source: BuildSource,
  deps: InstantDeps
): Promise<InstantBuild | 'failed before' | undefined> {
  const { directory, hardware, kinds, ranking, attempts, signal, log } = deps
  const byRank = ranking.flatMap(({ runtime }) => kinds.find(({ name }) => name === runtime) ?? [])
  let required = false
  try {
    const candidate = await source.provide({
      signal,
      runtime: byRank[0] ?? kinds[0]!,
      hardware,
      explain: reason => attempts.explain(source, undefined, reason)
    })
    if (candidate === undefined) {
      attempts.settle(source, undefined, 'unavailable')
      return undefined
    }
    required = candidate.required ?? false
    const { server } = candidate.executables
    const known = (await readRecords(directory)).find(({ build }) => build.executables.server === server)
    if (known?.failure && deps.skipFailed && !required && isRecent(known.failure, deps.machine)) {
      attempts.settle(source, undefined, 'failed', `it failed on ${known.failure.at}: ${known.failure.reason}`)
      return 'failed before'
    }
    const damage = known && (await damageOf(known, { signal, log }))
    if (damage !== undefined) attempts.explain(source, undefined, `${candidate.directory} has changed: ${damage}`)
    const reused = known && damage === undefined ? known.build : undefined
    const declared = byRank.find(({ name, kind }) => name === candidate.runtime || kind === candidate.kind)
    // The devices of a recorded build are listed again each time: drivers may have changed.
    const found = reused
      ? { ...reused, devices: await usableDevices(server, { signal, log, hardware, runtime: declared }) }
      : await deps.prove(candidate, { own: isOwn(candidate, directory), signal, hardware, runtime: declared })
    const runtime =
      declared ?? runtimeOf({ ...found, runtime: undefined, kind: 'unknown' }, kinds, ranking, hardware.gpus)
    const build = { ...found, ...(runtime && { runtime: runtime.name, kind: runtime.kind }) }
    if (!reused || known?.failure || reused.runtime !== build.runtime) await writeRecord(directory, build)
    return { build, source, runtime, required }
  } catch (error) {
    if (signal.aborted) throw signal.reason
    attempts.settle(source, undefined, 'failed', ...reasonsOf(error))
    if (error instanceof CorralError && error.code === 'runtime_missing') throw error
    if (required) throw new CorralError('runtime_missing', messageOf(error), { cause: error })
    return undefined
  }
}
