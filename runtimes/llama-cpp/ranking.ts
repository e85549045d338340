import type { ArchivePattern, Build, Fit, RankedCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../core/contracts/hardware.ts'
import { errorMessage } from '../../core/errors.ts'
import type { ReleaseAsset } from '../../core/system/release-server.ts'
import { compareVersions, knowsLibraries, SCORES } from './kinds/scores.ts'

interface Match {
  /** The archive, then the archive of its libraries, if there is one. */
  files: string[]
  pattern: ArchivePattern
  toolkit: string | undefined
  /** Whether the driver reports support for this version. */
  accepted: boolean
}

/** Chooses the archive for this machine: the highest version that the driver supports, or the lowest. */
function matchArchive(kind: RuntimeDescriptor, hardware: Hardware, names: readonly string[]): Match | undefined {
  for (const pattern of kind.archives) {
    if (pattern.platform !== hardware.platform || pattern.arch !== hardware.arch) continue
    const found: Match[] = []
    for (const name of names) {
      const match = pattern.archive.exec(name)
      if (!match) continue
      const companion = pattern.companion?.(match)
      const libraries = companion && names.find(other => companion.test(other))
      // The build would not start without its libraries. The release may still be uploading.
      if (companion && !libraries) continue
      const toolkit = match.slice(1).filter(Boolean).join('.') || undefined
      const accepted = kind.accepts?.(match, hardware) ?? true
      found.push({ files: libraries ? [name, libraries] : [name], pattern, toolkit, accepted })
    }
    const upwards = found.sort(
      (a, b) => compareVersions(a.toolkit ?? '', b.toolkit ?? '') || a.files[0]!.localeCompare(b.files[0]!, 'en')
    )
    const best = upwards.findLast(({ accepted }) => accepted) ?? upwards[0]
    if (best) return best
  }
  return undefined
}

function glibcObstacle({ glibc }: ArchivePattern, hardware: Hardware): string | undefined {
  if (hardware.platform !== 'linux' || glibc === undefined) return undefined
  if (hardware.glibc === undefined && !knowsLibraries(hardware)) return undefined
  if (hardware.glibc === undefined) return `needs glibc ${glibc}, and no glibc was found on this system`
  return compareVersions(hardware.glibc, glibc) < 0
    ? `needs glibc ${glibc}; this system has ${hardware.glibc}`
    : undefined
}

/** Explains why no release archive of a kind can run on this system. Undefined if one may. Pure. */
export function whyUnsupported(kind: RuntimeDescriptor, hardware: Hardware): string | undefined {
  const patterns = kind.archives.filter(
    ({ platform, arch }) => platform === hardware.platform && arch === hardware.arch
  )
  const obstacles = patterns.map(pattern => glibcObstacle(pattern, hardware))
  if (obstacles.length === 0 || obstacles.includes(undefined)) return undefined
  return `The release archive of ${kind.title} ${obstacles[0]}.`
}

/** Chooses the archive for this machine, and the archive of its libraries. Undefined if there is none. Pure. */
export function chooseArchives(kind: RuntimeDescriptor, hardware: Hardware, assets: readonly ReleaseAsset[]) {
  const names = assets.map(({ name }) => name)
  const match = matchArchive(kind, hardware, names)
  if (!match || glibcObstacle(match.pattern, hardware) !== undefined) return undefined
  return match.files.map(name => assets[names.indexOf(name)]!)
}

/** Ranks kinds by the hardware and a release's file names, best first. Equal scores keep their order. Pure. */
export function rankRuntimes(kinds: readonly RuntimeDescriptor[], hardware: Hardware, assetNames: readonly string[]) {
  return kinds.map(kind => evaluate(kind, hardware, assetNames)).sort((a, b) => b.score - a.score)
}

function evaluate(kind: RuntimeDescriptor, hardware: Hardware, names: readonly string[]): RankedCandidate {
  const { name: runtime, title } = kind
  const fit = rateFit(kind, hardware)
  const match = matchArchive(kind, hardware, names)
  const missing = [...fit.missing]
  let { score } = fit
  if (score > 0 && match) missing.push(...archiveWarnings(match, hardware))
  // Kinds without archives come from other sources, so an empty list is not informative.
  const without = score > 0 && !match && kind.archives.length > 0 && names.length > 0
  if (without) {
    missing.push({
      what: `The releases of llama.cpp have no ${title} archive for ${hardware.platform} ${hardware.arch}.`,
      fix: 'Compile llama.cpp on this machine and set CORRAL_LLAMA_CPP to the folder with llama-server'
    })
    if (kind.kind !== 'cpu') score = Math.min(score, SCORES.byChoice)
  }
  return {
    runtime,
    kind: kind.kind,
    title,
    score,
    usable: score > 0 && (!without || kind.kind === 'cpu'),
    reasons: fit.reasons,
    missing,
    gpus: fit.gpus,
    assets: match && score > 0 ? match.files : []
  }
}

/** If a kind of another plugin throws, the other kinds are still ranked. */
function rateFit(kind: RuntimeDescriptor, hardware: Hardware): Fit {
  try {
    return kind.fit(hardware)
  } catch (error) {
    return { score: 0, reasons: [`Its check failed: ${errorMessage(error)}`], missing: [], gpus: [] }
  }
}

function archiveWarnings({ files: [archive], pattern, accepted, toolkit }: Match, hardware: Hardware): Fit['missing'] {
  const warnings: Fit['missing'] = []
  const old = glibcObstacle(pattern, hardware)
  if (old) {
    warnings.push({
      what: `${archive} ${old}.`,
      fix: 'Run corral on a newer system or in a container (such as ubuntu:24.04), or let it compile llama.cpp'
    })
  }
  if (!accepted) {
    const highest = hardware.gpus.find(({ driver }) => driver?.cuda)?.driver?.cuda
    warnings.push({
      what: `${archive} is made with version ${toolkit}, but the driver supports ${highest}; some cards need a newer driver for it.`,
      fix: `If the build fails, update the driver to one that supports ${toolkit}`
    })
  }
  return warnings
}

export function isForGpus(kind: Build['kind']): boolean {
  return kind !== 'cpu' && kind !== 'unknown'
}

/** Whether a user's choice includes this kind of build: `cuda-13`, or `cuda` for all versions. */
export function matchesChoice(choice: string, { runtime, kind }: { runtime?: string; kind: Build['kind'] }): boolean {
  const name = choice.toLowerCase()
  return runtime?.toLowerCase() === name || kind === name
}

/** Returns the best ranked kind that uses one of the build's devices, or the processor's kind. Pure. */
export function findRuntime(
  build: Pick<Build, 'kind' | 'devices' | 'runtime'>,
  kinds: readonly RuntimeDescriptor[],
  ranking: readonly RankedCandidate[],
  gpus: readonly Gpu[]
): RuntimeDescriptor | undefined {
  const ranked = ranking.flatMap(({ runtime }) => kinds.find(({ name }) => name === runtime) ?? [])
  const sorted = [...ranked, ...kinds]
  const named = sorted.find(({ name }) => name === build.runtime)
  if (named) return named
  const using = sorted.find(
    kind =>
      isForGpus(kind.kind) &&
      (build.kind === kind.kind || build.kind === 'unknown') &&
      build.devices.some(device => kind.usesDevice(device, gpus))
  )
  return using ?? sorted.find(({ kind }) => kind === 'cpu')
}

/** Returns the position of an available build: its kind's, or just before the processor. Pure. */
export function getPosition(runtime: RuntimeDescriptor | undefined, ranking: readonly RankedCandidate[]): number {
  const own = ranking.find(candidate => candidate.runtime === runtime?.name && candidate.usable)
  if (own) return ranking.findIndex(({ score }) => score <= own.score)
  const processor = ranking.findIndex(({ kind }) => kind === 'cpu')
  return processor < 0 ? ranking.length - 1 : processor
}
