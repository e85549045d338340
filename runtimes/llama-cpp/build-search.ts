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
import { askDevices } from './prove.ts'
import type { Prove } from './prove-by-answer.ts'
import { matchesChoice, positionOf, runtimeOf } from './ranking.ts'
import { checkRecord, findRecorded, isOfKind, type RecordedDeps } from './recorded-builds.ts'
import { missingText, reasonsOf, type SearchAttempts, type SearchLog, trackAttempts } from './search-report.ts'
import { BuildImpossible, isSourceUnavailable } from './sources/source-errors.ts'

export interface SearchDeps {
  /** Asked in this order. */
  sources: readonly BuildSource[]
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  signal: AbortSignal
  onProgress: OnProgress
  /** What was tried, kept current. */
  attempts: Attempt[]
  hardware: Hardware
  kinds: readonly RuntimeDescriptor[]
  /** Best first: by what is known at once, and by the files that the release really has. */
  ranking: { known: readonly RankedCandidate[]; live(): Promise<readonly RankedCandidate[]> }
  /** Ids of builds: the one that the user chose, and what an upgrade returns to. */
  selection: { selected?: string; previous?: string }
  /** Name of a kind of build to find, instead of the best one. */
  choice?: string
  prove: Prove
}

/** Builds that the user installed, and that no source in use brings. */
const BY_HAND: BuildSource = {
  name: 'installed',
  description: 'what "corral runtime install" brought',
  provide: async () => undefined
}

/**
 * Finds a build that works, the best kind of the ranking first: one that is at hand or that was proven before, else what
 * the sources bring. What failed on this machine lately is tried again only when there is nothing else.
 * @throws CorralError `runtime_missing` with what was tried; the signal's reason when that was aborted
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

  /** Has a source bring a build of a kind, proves it and writes it down. */
  async function ask(source: BuildSource, runtime: RuntimeDescriptor): Promise<Build | 'out of order' | undefined> {
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
      return isSourceUnavailable(error) ? 'out of order' : undefined
    }
  }

  /** Builds of the same kind that the source's settings want no more, but for those that somebody counts on. */
  async function removeSuperseded(source: BuildSource, runtime: RuntimeDescriptor): Promise<void> {
    for (const record of await readRecords(directory)) {
      const { id } = record.build
      const counted = record.installed || id === selection.selected || id === selection.previous
      const same = isFrom(source, record) && isOfKind(record, runtime)
      if (same && !wanted(source, record) && !counted) await removeRecord(directory, record)
    }
  }

  /** What serves a candidate of the ranking without network or long work. */
  async function atHand(
    candidate: RankedCandidate,
    ranking: readonly RankedCandidate[],
    found: readonly AtHand[],
    heedFailures: boolean
  ): Promise<Build | undefined> {
    const at = found.find(({ runtime }) => ranking[positionOf(runtime, ranking)] === candidate)
    if (at) return take(at)
    const runtime = descriptorOf(candidate)
    for (const source of slow) {
      const fits = (record: BuildRecord) => isFrom(source, record) && wanted(source, record)
      const build = await findRecorded(source, runtime, fits, heedFailures, attempts, records)
      if (build) return build
    }
    const orphaned = (record: BuildRecord) => !!record.installed && !sources.some(source => isFrom(source, record))
    return await findRecorded(BY_HAND, runtime, orphaned, heedFailures, attempts, records)
  }

  function take({ build, source }: AtHand): Build {
    attempts.settle(source, undefined, 'chosen', `${build.version}, ${build.origin}`)
    return build
  }

  /** What `corral runtime use` wrote down, if it still works. */
  async function selected(): Promise<Build | undefined> {
    const id = selection.selected
    if (id === undefined || choice !== undefined) return undefined
    const record = (await readRecords(directory)).find(({ build }) => build.id === id)
    const runtime = record && runtimeOf(record.build, kinds, deps.ranking.known, hardware.gpus)
    let found: Build | string = 'it is not installed any more'
    if (record?.failure && isRecent(record.failure, machine)) found = `it failed: ${record.failure.reason}`
    else if (record) found = await checkRecord(record, runtime, records)
    if (typeof found === 'string') {
      const text = `llama.cpp: ${id}, chosen with "corral runtime use", cannot be used: ${found}. The best other one is taken.`
      log.warn({ build: id }, text)
      return undefined
    }
    const source = sources.find(({ name }) => name === record!.build.source)
    if (source) attempts.settle(source, runtime?.name, 'chosen', `${id} was chosen with "corral runtime use"`)
    return found
  }

  /** The ranking from its top, as far as everything better is known to fail. */
  async function quick(found: readonly AtHand[]): Promise<Build | undefined> {
    const ranking = considered(deps.ranking.known)
    for (const candidate of ranking) {
      const build = await atHand(candidate, ranking, found, true)
      if (build) return build
      if (!slow.every(source => failureOf(source, descriptorOf(candidate)))) return undefined
    }
    return undefined
  }

  /** All of the ranking, with all that it takes. */
  async function thorough(found: readonly AtHand[]): Promise<Build | undefined> {
    const ranking = considered(await deps.ranking.live())
    const release = await lockDirectory(directory, signal, log)
    try {
      const down = new Set<BuildSource>()
      const asked = new Set<string>()
      for (const heedFailures of [true, false]) {
        for (const candidate of ranking) {
          const runtime = descriptorOf(candidate)
          // Another process may have made one while this one waited for it.
          const known = await atHand(candidate, ranking, found, heedFailures)
          if (known) return known
          for (const source of candidate.usable ? slow : []) {
            const failure = failureOf(source, runtime)
            const question = `${source.name} ${runtime.name}`
            if (heedFailures && failure) {
              const advice = 'It is tried again when a day has passed, or the hardware or its driver has changed.'
              attempts.settle(source, runtime.name, 'failed', `it failed on ${failure.at}: ${failure.reason}`, advice)
            } else if (down.has(source)) {
              attempts.settle(source, runtime.name, 'not tried', 'it was out of order for another kind already')
            } else if (!asked.has(question)) {
              asked.add(question)
              await removeLeftovers(directory)
              const build = await ask(source, runtime)
              if (build === 'out of order') down.add(source)
              else if (build) return build
            }
          }
          for (const source of slow) {
            const fits = (record: BuildRecord) => isFrom(source, record)
            const former = await findRecorded(source, runtime, fits, heedFailures, attempts, records)
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
    const found: AtHand[] = []
    const heedFailures = choice === undefined
    const instant = { ...records, kinds, ranking: deps.ranking.known, prove, attempts, heedFailures }
    let build: Build | undefined
    const leftOut: BuildSource[] = []
    for (const source of sources.filter(source => source.instant)) {
      deps.onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const at = await askInstantSource(source, instant).catch(error => {
        // Who asks for another kind than that of the named folder does not need that folder.
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
    // Of no kind in the ranking, but it works.
    if (found[0]) build ??= take(found[0])
    for (const source of build ? [] : leftOut) {
      const at = await askInstantSource(source, { ...instant, heedFailures: false })
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

/** A build of a source that answers at once, whatever kind is asked for. */
export interface AtHand {
  build: Build
  source: BuildSource
  /** The kind that it turned out to serve. */
  runtime: RuntimeDescriptor | undefined
  /** Whether the user named this very build. */
  required: boolean
}

export interface InstantDeps extends RecordedDeps {
  kinds: readonly RuntimeDescriptor[]
  ranking: readonly RankedCandidate[]
  prove: Prove
  attempts: SearchAttempts
  /** Whether a build that failed lately is left out. */
  heedFailures: boolean
}

/**
 * Asks a source that needs no network or long work for its build, proven; `failed before` where it was left out.
 * @throws CorralError `runtime_missing` when it is one that the user named and it does not work
 */
export async function askInstantSource(
  source: BuildSource,
  deps: InstantDeps
): Promise<AtHand | 'failed before' | undefined> {
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
    if (known?.failure && deps.heedFailures && !required && isRecent(known.failure, deps.machine)) {
      attempts.settle(source, undefined, 'failed', `it failed on ${known.failure.at}: ${known.failure.reason}`)
      return 'failed before'
    }
    const damage = known && (await damageOf(known, { signal, log }))
    if (damage !== undefined) attempts.explain(source, undefined, `${candidate.directory} has changed: ${damage}`)
    const reused = known && damage === undefined ? known.build : undefined
    const said = byRank.find(({ name, kind }) => name === candidate.runtime || kind === candidate.kind)
    // The devices of a known build are asked for each time: drivers come and go.
    const found = reused
      ? { ...reused, devices: await askDevices(server, { signal, log, hardware, runtime: said }) }
      : await deps.prove(candidate, { own: isOwn(candidate, directory), signal, hardware, runtime: said })
    const runtime = said ?? runtimeOf({ ...found, runtime: undefined, kind: 'unknown' }, kinds, ranking, hardware.gpus)
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
