import type { Attempt, Build, BuildSource, RankedCandidate } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { errorMessage } from '../../core/errors.ts'
import { ToolError } from '../../core/system/child-process.ts'
import type { BuildsLog } from './builds-directory.ts'
import { isForGpus } from './ranking.ts'

/** Records what a search tried, in order, in the caller's list. */
export function createAttempts(list: Attempt[], sources: readonly BuildSource[], log: BuildsLog) {
  type Source = Pick<BuildSource, 'name' | 'description'>
  function attemptOf({ name, description }: Source, runtime: string | undefined): Attempt {
    const known = list.find(attempt => attempt.source === name && attempt.runtime === runtime)
    if (known) return known
    const added: Attempt = { ...(runtime && { runtime }), source: name, description, outcome: 'not tried', reasons: [] }
    list.push(added)
    return added
  }
  return {
    explain(source: Source, runtime: string | undefined, reason: string): void {
      const { reasons } = attemptOf(source, runtime)
      if (!reasons.includes(reason)) reasons.push(reason)
    },
    settle(source: Source, runtime: string | undefined, outcome: Attempt['outcome'], ...reasons: string[]): void {
      const attempt = attemptOf(source, runtime)
      attempt.outcome = outcome
      // The decisive reason comes first, then the earlier explanations.
      attempt.reasons = [...reasons.slice(0, 1), ...attempt.reasons, ...reasons.slice(1)]
      const what = `source "${source.name}"${runtime === undefined ? '' : `, ${runtime}`}`
      const why = attempt.reasons.length > 0 ? ` (${attempt.reasons[0]})` : ''
      const facts = { source: source.name, runtime, outcome, reasons: attempt.reasons }
      log[outcome === 'failed' ? 'warn' : 'info'](facts, `llama.cpp, ${what}: ${outcome}${why}`)
    },
    /** Adds the candidates that were not tried. */
    close(ranking: readonly RankedCandidate[]): void {
      for (const source of sources) {
        if (source.instant) attemptOf(source, undefined)
      }
      for (const { runtime } of ranking.filter(({ usable }) => usable)) {
        for (const source of sources) if (!source.instant) attemptOf(source, runtime)
      }
    }
  }
}

/** Returns the reasons in an error, with the last lines of a failed tool. */
export function listReasons(error: unknown): string[] {
  const reasons = [errorMessage(error)]
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof ToolError) return [...reasons, ...cause.tail.filter(line => line.trim() !== '').slice(-15)]
  }
  return reasons
}

/** Explains that no build was found, with the attempts and the missing requirements of the other kinds. Pure. */
export function missingText(attempts: readonly Attempt[], ranking: readonly RankedCandidate[] = []): string {
  const tried = attempts.filter(({ outcome }) => outcome !== 'not tried')
  const sentences = (tried.length > 0 ? tried : attempts).map(({ runtime, source, outcome, reasons }) => {
    const what = runtime === undefined ? source : `${runtime} from ${source}`
    return `${what}: ${reasons.length > 0 ? reasons[0]!.replace(/\.$/, '') : outcome}`
  })
  for (const { title, missing } of ranking.filter(({ usable }) => !usable)) {
    const needs = missing.map(({ what, fix }) => (fix === undefined ? what : `${what} (${fix})`)).join(', ')
    sentences.push(`${title} cannot work on this machine: ${needs || 'it has no such GPU'}`)
  }
  return (
    `No working llama.cpp build was found.${sentences.length > 0 ? ` ${sentences.join('; ')}. Fix one of these, or s` : ' S'}` +
    'et CORRAL_LLAMA_CPP to a folder with llama-server; "corral doctor" shows more.'
  )
}

function reasonFor({ runtime }: RankedCandidate, attempts: readonly Attempt[], decided: string | undefined): string {
  const tried = attempts.filter(attempt => {
    return attempt.runtime === runtime && ['failed', 'unavailable'].includes(attempt.outcome) && attempt.reasons[0]
  })
  const reasons = tried.map(({ source, reasons }) => `${source}: ${reasons[0]!.replace(/\.$/, '')}`)
  return reasons.length > 0 ? reasons.join('; ') : (decided ?? 'it was not searched for')
}

/** Explains in half a sentence why the build in use is of its kind. Pure. */
export function kindReason({ devices }: Pick<Build, 'devices'>, { gpus }: Hardware): string {
  const [first, ...more] = devices
  if (first) return `it uses ${first.description}${more.length > 0 ? ` and ${more.length} more` : ''}`
  return gpus.length === 0 ? 'no GPU was found' : 'no build works with the GPU'
}

/** Warns about an idle GPU and explains it, with the user's decision that led to this build, if any. Pure. */
export function warningsFor(
  build: Pick<Build, 'kind' | 'runtime'>,
  ranking: readonly RankedCandidate[],
  hardware: Hardware,
  attempts: readonly Attempt[],
  decided?: string
): string[] {
  const own = ranking.find(({ runtime }) => runtime === build.runtime)
  const better = ranking.filter(({ usable, kind, score }) => usable && isForGpus(kind) && score > (own?.score ?? 0))
  const nameOf = (id: string) => hardware.gpus.find(gpu => gpu.id === id)?.name ?? id
  if (isForGpus(build.kind)) {
    return better.slice(0, 1).map(candidate => {
      return `${build.runtime ?? build.kind} is used instead of ${candidate.title}: ${reasonFor(candidate, attempts, decided)}.`
    })
  }
  if (better.length > 0) {
    const names = [...new Set(better.flatMap(({ gpus }) => gpus))].map(nameOf).join(', ')
    const reasons = better.map(candidate => `${candidate.title}: ${reasonFor(candidate, attempts, decided)}`)
    return [
      `Models run on the processor only, many times slower than on this machine's GPU (${names}). ${reasons.join('. ')}. ` +
        '"corral doctor" shows how to fix it.'
    ]
  }
  const idle = hardware.gpus.filter(({ type, usable }) => type === 'discrete' && !usable)
  if (idle.length === 0) return []
  const problems = hardware.problems.map(({ message, advice }) =>
    advice === undefined ? message : `${message} ${advice}`
  )
  return [
    `Models run on the processor only: no build can use ${idle.map(({ name }) => name).join(', ')}. ` +
      (problems.join(' ') || '"corral doctor" shows what is missing.')
  ]
}
