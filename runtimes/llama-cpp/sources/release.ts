import { rm } from 'node:fs/promises'
import type { BuildCandidate, BuildSource, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { systemObstacle } from '../ranking.ts'
import { placeArchives } from './place-archives.ts'
import type { FoundArchives, Releases } from './releases.ts'

export interface ReleaseOptions {
  releases: Releases
  /** Server, repository and tag of `releases`, for people and for `wants`. */
  apiUrl: string
  repository: string
  tag: string
  /** Where builds lie. */
  directory: string
}

/** The id of a build that came from a release. */
export function releaseId(tag: string, runtime: Pick<RuntimeDescriptor, 'name'>): string {
  return `release-${tag}-${runtime.name}`
}

/** The release that a build is of, where its id tells: `b11347` of `release-b11347-cuda-13`. Pure. */
export function releaseTag(id: string): string | undefined {
  return /^(?:release|archive)-(b\d+|v\d+\.\d+\.\d+)-/.exec(id)?.[1]
}

/** The number of a nightly release: the higher, the newer. Undefined for others, which count something else. Pure. */
export function nightlyNumber(tag: string | undefined): number | undefined {
  const digits = /^b(\d+)$/.exec(tag ?? '')?.[1]
  return digits === undefined ? undefined : Number(digits)
}

/**
 * Fetches a release's archives, checks them by size and digest, and makes a build of them, unproven. Nothing is left
 * behind when that fails.
 */
export async function fetchRelease(
  releases: Releases,
  found: FoundArchives,
  { runtime, directory }: { runtime: RuntimeDescriptor; directory: string },
  waiting: Waiting
): Promise<BuildCandidate> {
  const work = await unfinishedFolder(directory)
  try {
    const { paths, origin } = await releases.fetch(found, work, waiting)
    const name = () => releaseId(found.tag, runtime)
    const placed = await placeArchives(paths, { directory, work, name }, waiting)
    return { ...placed, kind: runtime.kind, runtime: runtime.name, source: 'release', origin }
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

/** llama.cpp's official release archives for this machine, checked by their digests. */
export function releaseSource({ releases, apiUrl, repository, tag, directory }: ReleaseOptions): BuildSource {
  return {
    name: 'release',
    description: `release "${tag}" of ${repository} from ${apiUrl}`,
    // A stable release names a nightly that nobody knows without asking.
    wants: ({ id }) => !/^b\d+$/.test(tag) || releaseTag(id) === tag,
    async provide({ runtime, hardware, signal, onProgress, explain }) {
      onProgress?.({ phase: 'downloading', subject: 'llama.cpp' })
      const found = await releases.find(runtime, hardware, { signal })
      if (found === undefined) {
        explain(
          systemObstacle(runtime, hardware) ??
            `no archive of ${runtime.name} for ${hardware.platform} ${hardware.arch} in release "${tag}" of ${repository}`
        )
        return undefined
      }
      return await fetchRelease(releases, found, { runtime, directory }, { signal, onProgress })
    }
  }
}
