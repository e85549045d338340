import type { Build, RankedCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Gpu } from '../../core/contracts/hardware.ts'

/** Whether builds of this kind are made to use a GPU. */
export function isForGpus(kind: Build['kind']): boolean {
  return kind !== 'cpu' && kind !== 'unknown'
}

/** Whether a name that somebody gave means this kind of build: `cuda-13`, or `cuda` for all of them. */
export function isMeant(choice: string, { runtime, kind }: { runtime?: string; kind: Build['kind'] }): boolean {
  const name = choice.toLowerCase()
  return runtime?.toLowerCase() === name || kind === name
}

/**
 * The kind of build that a proven one serves: the best ranked one that uses a device of its list; that for the
 * processor when none does. Undefined when there is no such kind. Pure.
 */
export function runtimeOf(
  build: Pick<Build, 'kind' | 'devices' | 'runtime'>,
  kinds: readonly RuntimeDescriptor[],
  ranking: readonly RankedCandidate[],
  gpus: readonly Gpu[]
): RuntimeDescriptor | undefined {
  const place = ({ name }: RuntimeDescriptor) => {
    const at = ranking.findIndex(({ runtime }) => runtime === name)
    return at < 0 ? ranking.length : at
  }
  const sorted = [...kinds].sort((a, b) => place(a) - place(b))
  const named = sorted.find(({ name }) => name === build.runtime)
  if (named) return named
  const serving = sorted.find(
    kind =>
      isForGpus(kind.kind) &&
      (build.kind === kind.kind || build.kind === 'unknown') &&
      build.devices.some(device => kind.usesDevice(device, gpus))
  )
  return serving ?? sorted.find(({ kind }) => kind === 'cpu')
}

/**
 * At which place of the ranking a build is taken that is at hand already: that of its kind, or the first one that is no
 * better. A GPU that the build uses and that the ranking knows nothing of stands before the processor. Pure.
 */
export function placeOf(runtime: RuntimeDescriptor | undefined, ranking: readonly RankedCandidate[]): number {
  const own = ranking.find(candidate => candidate.runtime === runtime?.name && candidate.usable)
  if (own) return ranking.findIndex(({ score }) => score <= own.score)
  const processor = ranking.findIndex(({ kind }) => kind === 'cpu')
  return processor < 0 ? ranking.length - 1 : processor
}
