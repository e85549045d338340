import { rm } from 'node:fs/promises'
import type {
  Attempt,
  Build,
  BuildCandidate,
  BuildSource,
  RankedCandidate,
  RuntimeDescriptor
} from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { OnProgress } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { untilAborted } from '../../core/system/abort-signals.ts'
import { BuildImpossible, isSourceUnavailable } from '../../core/system/compile.ts'
import {
  type BuildRecord,
  type BuildsDirectory,
  type BuildsLog,
  failureNow,
  findDamage,
  isRecent,
  machineFingerprint
} from './builds-directory.ts'
import { findRuntime, getPosition, isForGpus, matchesChoice } from './ranking.ts'
import { createAttempts, listReasons, missingText } from './search-report.ts'
import { usableDevices, type VerifyBuild } from './verify-build.ts'

export interface BuildsContext {
  builds: BuildsDirectory
  log: BuildsLog
  /** Aborts all work when corral stops. */
  signal: AbortSignal
  hardware: HardwareService
  /** In the order in which they are tried. */
  sources: readonly BuildSource[]
  kinds: readonly RuntimeDescriptor[]
  verifyBuild: VerifyBuild
  /** The kinds, best first, by the file names that are already known. Empty until the hardware is detected. */
  ranking(): RankedCandidate[]
  /** The kinds, best first, by the release's current list of files. */
  liveRanking(): Promise<RankedCandidate[]>
}

export interface SearchOptions {
  /** Id of an installed build, or name of a kind, to find instead of the best build. */
  choice?: string | undefined
  attempts: Attempt[]
  onProgress: OnProgress
}

/** A build of an instant source. `required` if the user chose exactly this build. */
interface InstantBuild {
  build: Build
  source: BuildSource
  runtime: RuntimeDescriptor | undefined
  required: boolean
}

/** Stands for builds that the user installed and no configured source provides. */
const BY_HAND = { name: 'installed', description: 'builds from "corral runtime install"' }

/**
 * Finds a working build. If the choice is the id of an installed build, only that build is tried. Otherwise builds are
 * tried in this order:
 *
 * 1. the folder that the user names,
 * 2. the build that the user chose with `corral runtime use`,
 * 3. down the ranking, while every better kind is known to fail: builds that need no network or long work,
 * 4. down the ranking, for each kind: available builds, then builds from the sources, then outdated builds. Recent
 *    failures on this machine are skipped first, and tried in a second pass,
 * 5. available builds that are not in the ranking, then recent failures.
 *
 * @throws CorralError `runtime_missing` with the attempts, or the signal's reason if aborted
 */
export async function searchBuild(context: BuildsContext, options: SearchOptions): Promise<Build> {
  const { builds, log, signal, kinds, sources, verifyBuild } = context
  const { choice, onProgress } = options
  const hardware = await untilAborted(context.hardware.detect(), signal)
  const machine = machineFingerprint(hardware)
  const selection = builds.selection()
  const failedBefore = builds.failedAttempts().filter(attempt => isRecent(attempt, machine))
  const attempts = createAttempts(options.attempts, sources, log)
  const slow = sources.filter(source => !source.instant)
  const ranking = context.ranking()
  const considered = (all: readonly RankedCandidate[]) =>
    all.filter(candidate => (choice === undefined ? candidate.usable : matchesChoice(choice, candidate)))
  const sourceOf = ({ build }: BuildRecord) => sources.find(({ name }) => name === build.source)
  const isFromSlow = (record: BuildRecord) => slow.some(source => source === sourceOf(record))
  /** Whether a recorded build matches the settings of its source, or was installed by the user. */
  function isWanted(record: BuildRecord): boolean {
    const source = sourceOf(record)
    return source ? isFromSlow(record) && (source.wants?.(record.build) ?? true) : !!record.installed
  }
  const getDescriptor = ({ runtime }: RankedCandidate) => kinds.find(({ name }) => name === runtime)!
  const toFailure = ({ name, description }: BuildSource, { name: runtime }: RuntimeDescriptor) =>
    failedBefore.find(one => one.source === name && one.runtime === runtime && one.description === description)

  /** Returns a recorded build if it still works. Otherwise returns the reason and updates or removes its record. */
  async function check(record: BuildRecord, runtime: RuntimeDescriptor | undefined): Promise<Build | string> {
    const { id, directory: folder, executables } = record.build
    const damage = await findDamage(record, { signal, log, environment: runtime?.environment?.(hardware) })
    if (damage !== undefined) {
      // Only the user removes builds that the user installed.
      if (record.installed) await builds.markFailed(id, failureNow(damage, hardware))
      else await builds.remove(record)
      return `${folder}, verified on ${record.provenAt}, is not reused: ${damage}`
    }
    const build = { ...record.build, ...(runtime && { runtime: runtime.name }) }
    if (!runtime || !isForGpus(runtime.kind)) return build
    try {
      // The devices are listed again each time, because drivers may have changed.
      return { ...build, devices: await usableDevices(executables.server, { signal, log, hardware, runtime }) }
    } catch (error) {
      signal.throwIfAborted()
      await builds.markFailed(id, failureNow(error, hardware))
      return `${folder}, verified on ${record.provenAt}, does not work any more: ${errorMessage(error)}`
    }
  }

  /** Returns the preferred recorded build of a kind that fits and still works, and reports the attempt. */
  async function recorded(runtime: RuntimeDescriptor, fits: (record: BuildRecord) => boolean, skipFailed: boolean) {
    const fitting = byPreference(
      builds.records().filter(record => record.build.runtime === runtime.name && fits(record))
    )
    for (const source of [...slow, BY_HAND]) {
      for (const record of fitting.filter(record => (sourceOf(record) ?? BY_HAND) === source)) {
        const { failure, build, provenAt } = record
        if (failure && skipFailed && isRecent(failure, machine)) {
          attempts.explain(source, runtime.name, `${build.directory} failed on ${failure.at}: ${failure.reason}`)
          continue
        }
        const found = await check(record, runtime)
        if (typeof found !== 'string') {
          attempts.settle(source, runtime.name, 'chosen', `${build.directory}, verified on ${provenAt}, still works`)
          return found
        }
        attempts.explain(source, runtime.name, found)
        log.warn({ source: source.name, build: build.id }, `llama.cpp: ${found}`)
      }
    }
    return undefined
  }

  function take({ build, source }: InstantBuild): Build {
    attempts.settle(source, undefined, 'chosen', `${build.version}, ${build.origin}`)
    return build
  }

  async function provide(
    source: BuildSource,
    runtime: RuntimeDescriptor
  ): Promise<Build | 'source unavailable' | undefined> {
    let candidate: BuildCandidate | undefined
    try {
      const explain = (reason: string) => attempts.explain(source, runtime.name, reason)
      candidate = await source.provide({ signal, onProgress, runtime, hardware, explain })
      if (candidate === undefined) {
        attempts.settle(source, runtime.name, 'unavailable')
        return undefined
      }
      onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const build = await verifyBuild(candidate, { own: builds.owns(candidate), signal, hardware, runtime })
      await builds.save(build)
      // Builds that no longer match the source's settings are removed, unless the user installed or selected them.
      for (const record of builds.records()) {
        const superseded = sourceOf(record) === source && record.build.runtime === runtime.name && !isWanted(record)
        const needed = record.installed || [selection.selected, selection.previous].includes(record.build.id)
        if (superseded && !needed) await builds.remove(record)
      }
      attempts.settle(source, runtime.name, 'chosen', `${build.version}, ${build.origin}`)
      return build
    } catch (error) {
      signal.throwIfAborted()
      attempts.settle(source, runtime.name, 'failed', ...listReasons(error))
      if (candidate && builds.owns(candidate)) await rm(candidate.directory, { recursive: true, force: true })
      if (candidate || error instanceof BuildImpossible) {
        const { name, description } = source
        const failure = failureNow(error, hardware)
        await builds.addFailedAttempt({ source: name, description, runtime: runtime.name, ...failure })
      }
      return isSourceUnavailable(error) ? 'source unavailable' : undefined
    }
  }

  /** Gets and verifies an instant build. Returns `failed before` if it was skipped. @throws CorralError if it is required */
  async function instant(
    source: BuildSource,
    skipFailed: boolean
  ): Promise<InstantBuild | 'failed before' | undefined> {
    const byRank = ranking.map(getDescriptor)
    let required = false
    try {
      const explain = (reason: string) => attempts.explain(source, undefined, reason)
      const candidate = await source.provide({ signal, runtime: byRank[0] ?? kinds[0]!, hardware, explain })
      if (candidate === undefined) {
        attempts.settle(source, undefined, 'unavailable')
        return undefined
      }
      required = candidate.required ?? false
      const { server } = candidate.executables
      const record = builds.records().find(({ build }) => build.executables.server === server)
      if (record?.failure && skipFailed && !required && isRecent(record.failure, machine)) {
        const { at, reason } = record.failure
        attempts.settle(source, undefined, 'failed', `it failed on ${at}: ${reason}`)
        return 'failed before'
      }
      const damage = record && (await findDamage(record, { signal, log }))
      if (damage !== undefined) explain(`${candidate.directory} has changed: ${damage}`)
      const reused = damage === undefined ? record?.build : undefined
      const declared = byRank.find(({ name, kind }) => name === candidate.runtime || kind === candidate.kind)
      // The devices of a recorded build are listed again each time, because drivers may have changed.
      const found = reused
        ? { ...reused, devices: await usableDevices(server, { signal, log, hardware, runtime: declared }) }
        : await verifyBuild(candidate, { own: builds.owns(candidate), signal, hardware, runtime: declared })
      const runtime =
        declared ?? findRuntime({ ...found, runtime: undefined, kind: 'unknown' }, kinds, ranking, hardware.gpus)
      const build = { ...found, ...(runtime && { runtime: runtime.name, kind: runtime.kind }) }
      if (!reused || record?.failure || reused.runtime !== build.runtime) await builds.save(build)
      return { build, source, runtime, required }
    } catch (error) {
      signal.throwIfAborted()
      attempts.settle(source, undefined, 'failed', ...listReasons(error))
      if (error instanceof CorralError && error.code === 'runtime_missing') throw error
      if (required) throw new CorralError('runtime_missing', errorMessage(error), { cause: error })
      return undefined
    }
  }

  async function selected(): Promise<Build | undefined> {
    const id = selection.selected
    if (id === undefined || choice !== undefined) return undefined
    const record = builds.records().find(({ build }) => build.id === id)
    const runtime = record && findRuntime(record.build, kinds, ranking, hardware.gpus)
    let found: Build | string = 'it is no longer installed'
    if (record?.failure && isRecent(record.failure, machine)) found = `it failed: ${record.failure.reason}`
    else if (record) found = await check(record, runtime)
    if (typeof found === 'string') {
      const text = `${id}, chosen with "corral runtime use", cannot be used: ${found}. Using the best other build.`
      log.warn({ build: id }, `llama.cpp: ${text}`)
      return undefined
    }
    const source = sourceOf(record!)
    if (source) attempts.settle(source, runtime?.name, 'chosen', `${id} was chosen with "corral runtime use"`)
    return found
  }

  /**
   * Goes down the ranking to the first build that works. Without the network it stops at a kind for which a source has
   * not failed yet.
   */
  async function descend(all: readonly RankedCandidate[], found: readonly InstantBuild[], isOnline: boolean) {
    const down = new Set<BuildSource>()
    const tried = new Set<string>()
    for (const skipFailed of isOnline ? [true, false] : [true]) {
      for (const candidate of all) {
        const runtime = getDescriptor(candidate)
        // Another process may have made a build while this process waited for the lock.
        const at = found.find(({ runtime }) => all[getPosition(runtime, all)] === candidate)
        const known = at ? take(at) : await recorded(runtime, isWanted, skipFailed)
        if (known) return known
        if (!isOnline) {
          if (slow.every(source => toFailure(source, runtime))) continue
          return undefined
        }
        for (const source of candidate.usable ? slow : []) {
          const failure = toFailure(source, runtime)
          const attempt = `${source.name} ${runtime.name}`
          if (skipFailed && failure) {
            const advice = 'It will be tried again after a day, or when the hardware or its driver changes.'
            attempts.settle(source, runtime.name, 'failed', `it failed on ${failure.at}: ${failure.reason}`, advice)
          } else if (down.has(source)) {
            attempts.settle(source, runtime.name, 'not tried', 'it was already unavailable for another kind')
          } else if (!tried.has(attempt)) {
            tried.add(attempt)
            await builds.removeLeftovers()
            const build = await provide(source, runtime)
            if (build === 'source unavailable') down.add(source)
            else if (build) return build
          }
        }
        const outdated = await recorded(runtime, isFromSlow, skipFailed)
        if (outdated) return outdated
      }
    }
    return undefined
  }

  if (choice !== undefined) {
    const records = builds.records()
    const record = records.find(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
    if (record) {
      const found = await check(record, findRuntime(record.build, kinds, ranking, hardware.gpus))
      if (typeof found !== 'string') return found
      throw new CorralError('runtime_missing', `The llama.cpp build "${choice}" cannot be used: ${found}.`)
    }
    if (!kinds.some(({ name, kind }) => matchesChoice(choice, { runtime: name, kind }))) {
      const names = kinds.map(({ name }) => name).join(', ')
      const installed = records.map(({ build }) => build.id).join(', ') || 'none'
      const text = `There is no llama.cpp build "${choice}". Kinds are ${names}; installed are ${installed}. Correct the setting "runtime".`
      throw new CorralError('runtime_missing', text)
    }
  }
  try {
    const found: InstantBuild[] = []
    const skipped: BuildSource[] = []
    let build: Build | undefined
    for (const source of sources.filter(source => source.instant)) {
      onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const at = await instant(source, choice === undefined).catch(error => {
        // If the user chose another kind, the search continues without the folder that the settings name.
        if (choice === undefined || signal.aborted) throw error
        return undefined
      })
      if (at === 'failed before') skipped.push(source)
      else if (at?.required && choice === undefined) build ??= take(at)
      else if (at && (choice === undefined || matchesChoice(choice, at.build))) {
        found.push(at)
        attempts.explain(source, undefined, `${at.build.origin} works, for ${at.runtime?.title ?? at.build.kind}`)
      }
    }
    build ??= await selected()
    build ??= await descend(considered(ranking), found, false)
    if (slow.length > 0 && !build) {
      const all = considered(await untilAborted(context.liveRanking(), signal))
      build = await builds.locked(() => descend(all, found, true), context)
    }
    // The build works, but is of no ranked kind.
    if (found[0]) build ??= take(found[0])
    for (const source of build ? [] : skipped) {
      const at = await instant(source, false)
      if (typeof at === 'object') build ??= take(at)
    }
    if (build) return build
  } finally {
    attempts.close(considered(ranking))
  }
  const text = missingText(options.attempts, considered(ranking))
  throw new CorralError('runtime_missing', text, { details: { attempts: options.attempts } })
}

/** Sorts records, newest first: builds that corral chose come before the user's, then newer releases. Pure. */
export function byPreference(records: readonly BuildRecord[]): BuildRecord[] {
  const installed = (record: BuildRecord) => Number(record.installed ?? false)
  const release = ({ build }: BuildRecord) => Number(/-b(\d+)-/.exec(build.id)?.[1] ?? 0)
  return [...records].sort((a, b) => installed(a) - installed(b) || release(b) - release(a))
}
