import type { ArchivePattern, Build, Fit, RankedCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../core/contracts/hardware.ts'
import { messageOf } from '../../core/errors.ts'
import { compareVersions, knowsLibraries, SCORES } from './kinds/fit.ts'
import type { ReleaseAsset } from './sources/release-download.ts'

interface Match {
  archive: string
  companions: string[]
  pattern: ArchivePattern
  /** Version of the toolkit that the name tells. */
  toolkit: string | undefined
  /** Whether the driver serves this version by its own word. */
  accepted: boolean
}

/** The archive for a platform by the live names: the highest version that the driver serves, else the lowest. Pure. */
function matchArchive(kind: RuntimeDescriptor, hardware: Hardware, names: readonly string[]): Match | undefined {
  for (const pattern of kind.archives) {
    if (pattern.platform !== hardware.platform || pattern.arch !== hardware.arch) continue
    const found: Match[] = []
    for (const name of names) {
      const match = pattern.archive.exec(name)
      if (!match) continue
      const companion = pattern.companion?.(match)
      const companions = companion ? names.filter(other => companion.test(other)) : []
      // Without its libraries it would not start; a release may still be uploading.
      if (companion && companions.length === 0) continue
      const toolkit = match.slice(1).filter(Boolean).join('.') || undefined
      const accepted = kind.accepts?.(match, hardware) ?? true
      found.push({ archive: name, companions: companions.slice(0, 1), pattern, toolkit, accepted })
    }
    const upwards = found.sort(
      (a, b) => compareVersions(a.toolkit ?? '', b.toolkit ?? '') || a.archive.localeCompare(b.archive, 'en')
    )
    const best = upwards.findLast(({ accepted }) => accepted) ?? upwards[0]
    if (best) return best
  }
  return undefined
}

/** What keeps this system from running an archive; undefined when nothing does. */
function tooOld({ glibc }: ArchivePattern, hardware: Hardware): string | undefined {
  if (hardware.platform !== 'linux' || glibc === undefined) return undefined
  if (hardware.glibc === undefined && !knowsLibraries(hardware)) return undefined
  if (hardware.glibc === undefined) return `needs glibc ${glibc}, and no glibc was found on this system`
  return compareVersions(hardware.glibc, glibc) < 0
    ? `needs glibc ${glibc}; this system has ${hardware.glibc}`
    : undefined
}

/**
 * Why no release's archive of a kind can run on this system, whichever driver and release; undefined where one may. A
 * sentence. Pure.
 */
export function systemObstacle(kind: RuntimeDescriptor, hardware: Hardware): string | undefined {
  const patterns = kind.archives.filter(
    ({ platform, arch }) => platform === hardware.platform && arch === hardware.arch
  )
  const obstacles = patterns.map(pattern => tooOld(pattern, hardware))
  if (obstacles.length === 0 || obstacles.includes(undefined)) return undefined
  return `A release's archive of ${kind.title} ${obstacles[0]}.`
}

/**
 * The archive of a release that serves a kind of build on this machine, and the archives that go into the same folder;
 * undefined where the release has none or this system is too old for it. Pure.
 */
export function chooseArchives(
  kind: RuntimeDescriptor,
  hardware: Hardware,
  assets: readonly ReleaseAsset[]
): { archive: ReleaseAsset; companions: ReleaseAsset[] } | undefined {
  const match = matchArchive(
    kind,
    hardware,
    assets.map(({ name }) => name)
  )
  if (!match || tooOld(match.pattern, hardware) !== undefined) return undefined
  const named = (name: string) => assets.find(asset => asset.name === name)!
  return { archive: named(match.archive), companions: match.companions.map(named) }
}

/**
 * All kinds of builds for this machine, what is to be tried first at the head. Goes by the hardware and by the names of a
 * release's files; equal ones stay in the order of `kinds`. Pure.
 */
export function rankRuntimes(
  kinds: readonly RuntimeDescriptor[],
  hardware: Hardware,
  assetNames: readonly string[]
): RankedCandidate[] {
  return kinds.map(kind => judge(kind, hardware, assetNames)).sort((a, b) => b.score - a.score)
}

function judge(kind: RuntimeDescriptor, hardware: Hardware, names: readonly string[]): RankedCandidate {
  const { name: runtime, title } = kind
  const fit = fitOf(kind, hardware)
  const match = matchArchive(kind, hardware, names)
  const missing = [...fit.missing]
  let { score } = fit
  if (score > 0 && match) missing.push(...doubtsOf(match, hardware))
  // Kinds without archives come from sources of their own, and of an empty list nothing can be concluded.
  const without = score > 0 && !match && kind.archives.length > 0 && names.length > 0
  if (without) {
    missing.push({
      what: `llama.cpp's releases have no ${title} archive for ${hardware.platform} ${hardware.arch}.`,
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
    assets: match && score > 0 ? [match.archive, ...match.companions] : []
  }
}

/** A kind that another plugin brought may fail; the others are ranked all the same. */
function fitOf(kind: RuntimeDescriptor, hardware: Hardware): Fit {
  try {
    return kind.fit(hardware)
  } catch (error) {
    return { score: 0, reasons: [`It cannot be judged: ${messageOf(error)}`], missing: [], gpus: [] }
  }
}

function doubtsOf({ archive, pattern, accepted, toolkit }: Match, hardware: Hardware): Fit['missing'] {
  const doubts: Fit['missing'] = []
  const old = tooOld(pattern, hardware)
  if (old) {
    doubts.push({
      what: `${archive} ${old}.`,
      fix: 'Run corral on a newer system or in a container of one (such as ubuntu:24.04), or let it compile llama.cpp'
    })
  }
  if (!accepted) {
    const highest = hardware.gpus.find(({ driver }) => driver?.cuda)?.driver?.cuda
    doubts.push({
      what: `${archive} is made with version ${toolkit}, newer than the driver's (${highest}); cards that it holds no finished code for need a newer driver.`,
      fix: `Update the driver to one that serves ${toolkit}, should the build fail its proof`
    })
  }
  return doubts
}

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
