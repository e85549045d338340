import type { Attempt, Build, RankedCandidate } from '../../core/contracts/builds.ts'
import type { Hardware } from '../../core/contracts/hardware.ts'
import { isForGpus } from './build-place.ts'

/** Why a better kind is not what is used, as far as the search tells. */
function reasonFor({ runtime }: RankedCandidate, attempts: readonly Attempt[], decided: string | undefined): string {
  const tried = attempts.filter(attempt => {
    return attempt.runtime === runtime && (attempt.outcome === 'failed' || attempt.outcome === 'unavailable')
  })
  const reasons = tried.flatMap(({ source, reasons }) =>
    reasons[0] ? [`${source}: ${reasons[0].replace(/\.$/, '')}`] : []
  )
  return reasons.length > 0 ? reasons.join('; ') : (decided ?? 'it was not looked for')
}

/**
 * What people must know about the build that is used: a GPU that it leaves idle, and why. Nothing where it is of the
 * best kind that can work here. Pure.
 * @param ranking best first
 * @param decided what people decided, where that is why this build is used
 */
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
      return `${build.runtime ?? build.kind} is used in place of ${candidate.title}: ${reasonFor(candidate, attempts, decided)}.`
    })
  }
  if (better.length > 0) {
    const names = [...new Set(better.flatMap(({ gpus }) => gpus))].map(nameOf).join(', ')
    const reasons = better.map(candidate => `${candidate.title}: ${reasonFor(candidate, attempts, decided)}`)
    return [
      `Models run on the processor alone, many times slower than on this machine's GPU (${names}). ${reasons.join('. ')}. ` +
        '"corral doctor" tells what would mend it.'
    ]
  }
  const idle = hardware.gpus.filter(({ type, usable }) => type === 'discrete' && !usable)
  if (idle.length === 0) return []
  const problems = hardware.problems.map(({ message, advice }) =>
    advice === undefined ? message : `${message} ${advice}`
  )
  return [
    `Models run on the processor alone: no build can use ${idle.map(({ name }) => name).join(', ')} as it is now. ` +
      (problems.join(' ') || '"corral doctor" tells what is missing.')
  ]
}
