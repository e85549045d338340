import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { BuildCandidate, BuildSource, RuntimeDescriptor, RuntimesReport } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { offlineVariable } from '../../../core/system/connections.ts'
import {
  isMissing,
  type Release,
  type ReleaseAsset,
  ReleaseServer,
  type ReleaseServerOptions
} from '../../../core/system/release-server.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { archiveTag, byRelease, parseTag, releaseTag } from '../kinds/scores.ts'
import { chooseArchives, whyUnsupported } from '../ranking.ts'
import { placeArchives } from './archive.ts'
import bundled from './bundled-release.json' with { type: 'json' }

export interface ReleasesOptions extends ReleaseServerOptions {
  tag: string
  directory: string
  log: { debug(object: object, message: string): void }
}

export type FoundArchives = NonNullable<Awaited<ReturnType<Releases['find']>>>

/** Names of a release's files: the server's current list, or the list bundled with corral. */
export type ReleaseListing = RuntimesReport['release'] & { names: readonly string[] }

const NIGHTLY_TAG = 'nightly-tag.txt'
/** Pages of releases to search for an archive. Some kinds were absent from 180 consecutive releases. */
const PAGES = 6
/** Milliseconds to wait before the bundled list is used, and to cache the current and the bundled list. */
const LISTING_LIMIT = 5_000
const LISTING_KEPT = 300_000
const BUNDLED_KEPT = 30_000

/** The files of a release when this version of corral was made, for the ranking until the list is available. */
export const BUNDLED_LISTING: ReleaseListing = { ...bundled, list: 'snapshot' }

export function releaseId(tag: string, runtime: Pick<RuntimeDescriptor, 'name'>): string {
  return `release-${tag}-${runtime.name}`
}

type Serves = (assets: readonly ReleaseAsset[]) => boolean

/**
 * Finds the release to use. A stable release has the archives itself, or names the nightly release that has them. If
 * that is missing or lacks the archives, the newest release that has them is used. Nightly releases are tried first,
 * because the newest stable release may still be uploading.
 * @throws CorralError if the server is unreachable, or has no release with this tag
 */
export async function findRelease(
  server: Pick<ReleaseServer, 'latest' | 'byTag' | 'recent' | 'text'>,
  tag: string,
  serves: Serves,
  signal: AbortSignal
): Promise<Release | undefined> {
  const findNightly = async ({ assets }: Release): Promise<Release | undefined> => {
    const pointer = assets.find(({ name }) => name === NIGHTLY_TAG)
    const nightlyTag = pointer && (await server.text(pointer, signal)).trim()
    if (parseTag(nightlyTag)?.isStable !== false) return undefined
    const nightly = await server.byTag(nightlyTag!, signal)
    return serves(nightly.assets) ? nightly : undefined
  }
  if (tag !== 'latest') {
    const named = await server.byTag(tag, signal)
    return serves(named.assets) ? named : await findNightly(named)
  }
  const stable = await server.latest(signal)
  if (stable && serves(stable.assets)) return stable
  const nightly = stable && (await findNightly(stable).catch(undefinedIfMissing))
  if (nightly) return nightly
  let older: Release | undefined
  for (let page = 1; page <= PAGES; page++) {
    const releases = await server.recent(page, signal)
    const serving = releases.filter(({ assets }) => serves(assets)).sort((a, b) => byRelease(a.tag_name, b.tag_name))
    const nightly = serving.find(({ tag_name }) => parseTag(tag_name)?.isStable === false)
    if (nightly) return nightly
    older ??= serving.find(({ tag_name }) => parseTag(tag_name)?.isStable)
    if (releases.length === 0) break
  }
  return older
}

function undefinedIfMissing(error: unknown): undefined {
  if (isMissing(error) || (error instanceof CorralError && error.code === 'runtime_not_found')) return undefined
  throw error
}

export class Releases {
  readonly server: ReleaseServer
  readonly followsLatest: boolean
  readonly #options: ReleasesOptions
  #kept: { listing: ReleaseListing; until: number } | undefined
  #listing: Promise<ReleaseListing> | undefined

  constructor(options: ReleasesOptions) {
    this.#options = options
    const advice =
      ', set runtimes.release.api_url to a mirror, or install an archive with "corral runtime install <file>"'
    this.server = new ReleaseServer({ ...options, advice })
    this.followsLatest = options.tag === 'latest'
  }

  /** Returns the file names of the current release, cached for some minutes, or the bundled ones. Never rejects. */
  async listing(): Promise<ReleaseListing> {
    if (this.#kept && performance.now() < this.#kept.until) return this.#kept.listing
    this.#listing ??= this.#list().finally(() => {
      this.#listing = undefined
    })
    return await this.#listing
  }

  async #list(): Promise<ReleaseListing> {
    let listing = BUNDLED_LISTING
    try {
      const forbidden = offlineVariable(process.env)
      if (forbidden) throw new Error(`${forbidden} is set`)
      const hasBinaries: Serves = assets =>
        assets.some(({ name }) => archiveTag(name) !== undefined && name.includes('-bin-'))
      const release = await findRelease(this.server, this.#options.tag, hasBinaries, abortAfter(LISTING_LIMIT))
      if (release === undefined) throw new Error(`no release of ${this.#options.repository} has archives`)
      listing = { tag: release.tag_name, list: 'live', names: release.assets.map(({ name }) => name) }
    } catch (error) {
      this.#options.log.debug({ reason: errorMessage(error) }, 'The list of llama.cpp releases is unavailable.')
    }
    this.#kept = { listing, until: performance.now() + (listing === BUNDLED_LISTING ? BUNDLED_KEPT : LISTING_KEPT) }
    return listing
  }

  /** Finds the archives of a kind in a release, the configured one by default. @throws CorralError of the server */
  async find(
    runtime: RuntimeDescriptor,
    hardware: Hardware,
    { signal = new AbortController().signal }: Waiting = {},
    tag = this.#options.tag
  ) {
    // Older releases need the same system or a newer one.
    if (whyUnsupported(runtime, hardware) !== undefined) return undefined
    const choose = (assets: readonly ReleaseAsset[]) => chooseArchives(runtime, hardware, assets)
    const release = await findRelease(this.server, tag, assets => choose(assets) !== undefined, signal)
    const assets = release && choose(release.assets)
    return assets && { tag: release.tag_name, assets }
  }

  /**
   * Downloads and checks archives, and makes an unverified build from them. Leaves nothing behind on failure.
   * @throws CorralError `checksum_mismatch`, `hub_unreachable`, `insufficient_storage`, `invalid_request`
   */
  async fetch({ tag, assets }: FoundArchives, runtime: RuntimeDescriptor, waiting: Waiting): Promise<BuildCandidate> {
    const { signal = new AbortController().signal, onProgress } = waiting
    const { directory } = this.#options
    const total = assets.reduce((sum, { size }) => sum + size, 0)
    const work = await unfinishedFolder(directory)
    try {
      const paths: string[] = []
      let before = 0
      for (const asset of assets) {
        const path = join(work, asset.name)
        const onBytes = (bytes: number) => {
          const completed = before + bytes
          const fraction = total > 0 ? Math.min(1, completed / total) : undefined
          onProgress?.({ phase: 'downloading', subject: `llama.cpp ${tag}`, fraction, completed, total })
        }
        await this.server.download(asset, path, onBytes, signal)
        before += asset.size
        paths.push(path)
      }
      const placed = await placeArchives(paths, directory, () => releaseId(tag, runtime), waiting)
      const origin = this.server.addressOf(assets[0]!)
      return { ...placed, kind: runtime.kind, runtime: runtime.name, source: 'release', origin }
    } finally {
      await rm(work, { recursive: true, force: true })
    }
  }
}

/** Provides llama.cpp's official release archives for this machine. */
export function releaseSource(
  releases: Pick<Releases, 'find' | 'fetch'>,
  { api_url, repository, tag }: Pick<ReleasesOptions, 'api_url' | 'repository' | 'tag'>
): BuildSource {
  return {
    name: 'release',
    description: `release "${tag}" of ${repository} from ${api_url}`,
    // Without the network it is unknown which nightly a stable release names.
    wants: ({ id }) => parseTag(tag)?.isStable !== false || releaseTag(id) === tag,
    async provide({ runtime, hardware, signal, onProgress, explain }) {
      onProgress?.({ phase: 'downloading', subject: 'llama.cpp' })
      const found = await releases.find(runtime, hardware, { signal })
      if (found) return await releases.fetch(found, runtime, { signal, onProgress })
      explain(
        whyUnsupported(runtime, hardware) ??
          `no archive of ${runtime.name} for ${hardware.platform} ${hardware.arch} in release "${tag}" of ${repository}`
      )
      return undefined
    }
  }
}
