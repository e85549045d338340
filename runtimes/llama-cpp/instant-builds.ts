import type { Build, BuildSource, RankedCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { runtimeOf } from './build-place.ts'
import { damageOf, isOwn, readRecords, writeRecord } from './build-records.ts'
import { stillCounts } from './failed-attempts.ts'
import { askDevices } from './prove.ts'
import type { Prove } from './prove-by-answer.ts'
import type { RecordedDeps } from './recorded-builds.ts'
import { reasonsOf, type SearchAttempts } from './search-attempts.ts'

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
    if (known?.failure && deps.heedFailures && !required && stillCounts(known.failure, deps.machine)) {
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
