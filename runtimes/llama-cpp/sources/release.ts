import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { BuildCandidate, BuildSource, RuntimeDescriptor, RuntimesReport } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../../core/errors.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { chooseArchives, whyUnsupported } from '../ranking.ts'
import { placeArchives } from './archive.ts'
import type { Release, ReleaseAsset } from './release-download.ts'
import {
  createReleaseServer,
  type ReleaseServer,
  type ReleaseServerOptions,
  ReleaseStatusError
} from './release-server.ts'
import { snapshot } from './release-snapshot.ts'

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
          whyUnsupported(runtime, hardware) ??
            `no archive of ${runtime.name} for ${hardware.platform} ${hardware.arch} in release "${tag}" of ${repository}`
        )
        return undefined
      }
      return await fetchRelease(releases, found, { runtime, directory }, { signal, onProgress })
    }
  }
}

export interface ReleasesOptions extends Omit<ReleaseServerOptions, 'signal'> {
  /** Tag of the release to take; `latest` follows the newest stable one. */
  tag: string
  log: { debug(object: object, message: string): void }
}

/** Archives of one kind for one machine, found in a release. */
export interface FoundArchives {
  tag: string
  archive: ReleaseAsset
  companions: ReleaseAsset[]
}

/** Names of a release's files: those of the server, or those that came with corral. */
export type ReleaseListing = RuntimesReport['release'] & { names: readonly string[] }

const NIGHTLY_TAG = 'nightly-tag.txt'
/** Pages of releases that are looked through for one that has an archive: some kinds were absent from 180 in a row. */
const PAGES = 6
/** Milliseconds that a list of names may take: without one there is the one that came with corral. */
const LISTING_LIMIT = 5_000
const LISTING_KEPT = 300_000
/** Milliseconds until a list that could not be had is asked for again. */
const FAILURE_KEPT = 30_000

type Asked = Pick<ReleaseServer, 'latest' | 'byTag' | 'recent' | 'text'>

/**
 * The release to take. A stable one holds no binaries but names the nightly that does; where that cannot be had or lacks
 * what is wanted, the newest nightly that has it: the very newest may still be uploading.
 * @throws CorralError when the server cannot be asked, or has no release of this tag
 */
export async function findRelease(
  server: Asked,
  tag: string,
  serves: (assets: readonly ReleaseAsset[]) => boolean
): Promise<Release | undefined> {
  if (tag !== 'latest') {
    const named = await server.byTag(tag)
    return serves(named.assets) ? named : await nightlyOf(server, named, serves)
  }
  const stable = await server.latest()
  if (stable && serves(stable.assets)) return stable
  const nightly = stable && (await undefinedIfMissing(nightlyOf(server, stable, serves)))
  if (nightly) return nightly
  for (let page = 1; page <= PAGES; page++) {
    const releases = await server.recent(page)
    const newest = newestOf(releases.filter(({ assets }) => serves(assets)))
    if (newest !== undefined || releases.length === 0) return newest
  }
  return undefined
}

/** The nightly release that a stable one names, where it has what is wanted. */
async function nightlyOf(
  server: Asked,
  { assets }: Release,
  serves: (assets: readonly ReleaseAsset[]) => boolean
): Promise<Release | undefined> {
  const pointer = assets.find(({ name }) => name === NIGHTLY_TAG)
  const tag = pointer && (await server.text(pointer)).trim()
  if (!tag || !/^b\d+$/.test(tag)) return undefined
  const nightly = await server.byTag(tag)
  return serves(nightly.assets) ? nightly : undefined
}

async function undefinedIfMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  try {
    return await asked
  } catch (error) {
    const missing = error instanceof ReleaseStatusError && error.answered === 404
    if (missing || (error instanceof CorralError && error.code === 'runtime_not_found')) return undefined
    throw error
  }
}

/** The one with the highest b-number; v-numbers count something else. Pure. */
function newestOf(releases: readonly Release[]): Release | undefined {
  return releases
    .filter(({ tag_name }) => /^b\d+$/.test(tag_name))
    .sort((a, b) => Number(b.tag_name.slice(1)) - Number(a.tag_name.slice(1)))[0]
}

/** llama.cpp's releases at one server. */
export function createReleases(options: ReleasesOptions) {
  let kept: { listing: ReleaseListing; until: number } | undefined
  let listed: Promise<ReleaseListing> | undefined

  async function ask(signal: AbortSignal): Promise<ReleaseListing> {
    const server = createReleaseServer({ ...options, signal })
    try {
      const hasBinaries = (assets: readonly ReleaseAsset[]) => assets.some(({ name }) => /^llama-b\d+-bin-/.test(name))
      const release = await findRelease(server, options.tag, hasBinaries)
      if (release === undefined) throw new Error(`no release of ${options.repository} has archives`)
      kept = {
        listing: { tag: release.tag_name, list: 'live', names: release.assets.map(({ name }) => name) },
        until: performance.now() + LISTING_KEPT
      }
    } catch (error) {
      options.log.debug({ reason: messageOf(error) }, 'The list of llama.cpp releases could not be had.')
      kept = {
        listing: { tag: snapshot.tag, list: 'snapshot', names: snapshot.names },
        until: performance.now() + FAILURE_KEPT
      }
    } finally {
      await server.close()
    }
    return kept.listing
  }

  return {
    /** Whether it is the newest release that is taken, and no certain one. */
    followsLatest: options.tag === 'latest',

    /**
     * Files of the release that would be taken, for the ranking: the server's list, kept for some minutes, or soon the
     * one that came with corral. Never rejects.
     */
    async listing(): Promise<ReleaseListing> {
      if (kept && performance.now() < kept.until) return kept.listing
      listed ??= ask(AbortSignal.timeout(LISTING_LIMIT)).finally(() => {
        listed = undefined
      })
      return await listed
    },

    /**
     * The archives of a kind for this machine in a release, by default the one that the options name; undefined where
     * there are none.
     * @throws CorralError when the server cannot be asked, or has no such release
     */
    async find(
      runtime: RuntimeDescriptor,
      hardware: Hardware,
      { signal = new AbortController().signal }: Waiting = {},
      tag = options.tag
    ): Promise<FoundArchives | undefined> {
      // Older releases need no older system: looking through them would be in vain.
      if (whyUnsupported(runtime, hardware) !== undefined) return undefined
      const server = createReleaseServer({ ...options, signal })
      try {
        const release = await findRelease(
          server,
          tag,
          assets => chooseArchives(runtime, hardware, assets) !== undefined
        )
        const chosen = release && chooseArchives(runtime, hardware, release.assets)
        return chosen && { tag: release.tag_name, ...chosen }
      } finally {
        await server.close()
      }
    },

    /**
     * Stores archives in a folder, checked by size and digest; progress counts the bytes of all. Gives their paths and
     * the first one's address.
     * @throws CorralError `checksum_mismatch`, `hub_unreachable`, `insufficient_storage`
     */
    async fetch(
      { tag, archive, companions }: FoundArchives,
      folder: string,
      { signal = new AbortController().signal, onProgress }: Waiting
    ): Promise<{ paths: string[]; origin: string }> {
      const server = createReleaseServer({ ...options, signal })
      try {
        const assets = [archive, ...companions]
        const total = assets.reduce((sum, { size }) => sum + size, 0)
        const paths: string[] = []
        let before = 0
        for (const asset of assets) {
          const path = join(folder, asset.name)
          await server.download(asset, path, bytes => {
            const completed = before + bytes
            const fraction = total > 0 ? Math.min(1, completed / total) : undefined
            onProgress?.({ phase: 'downloading', subject: `llama.cpp ${tag}`, fraction, completed, total })
          })
          before += asset.size
          paths.push(path)
        }
        return { paths, origin: server.addressOf(archive) }
      } finally {
        await server.close()
      }
    }
  }
}
export type Releases = ReturnType<typeof createReleases>
