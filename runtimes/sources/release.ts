import { readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { BuildSource } from '../../core/runtimes.ts'
import { programFolder, programsIn } from '../build-files.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { chooseAsset, newestComplete, type Platform, type Release } from './release-assets.ts'
import { createReleaseServer, type ReleaseServer, type ReleaseServerOptions } from './release-server.ts'
import { unpackArchive } from './unpack-archive.ts'

export interface ReleaseOptions extends Omit<ReleaseServerOptions, 'signal'> {
  /** Tag of the release; `latest` follows the newest stable one. */
  tag: string
  /** Where builds lie. */
  directory: string
  platform: Platform
}

const NIGHTLY_TAG = 'nightly-tag.txt'

/**
 * The release to take. A stable one holds no binaries but names the nightly that does; where that fails, the newest
 * nightly that has an archive for this platform.
 */
async function findRelease(server: ReleaseServer, { tag, platform }: ReleaseOptions): Promise<Release | undefined> {
  const first = await (tag === 'latest' ? server.latest() : server.byTag(tag))
  if (chooseAsset(first.assets, platform)) return first
  const pointer = first.assets.find(({ name }) => name === NIGHTLY_TAG)
  const nightlyTag = pointer && (await server.text(pointer)).trim()
  if (nightlyTag && /^b\d+$/.test(nightlyTag)) {
    const nightly = await server.byTag(nightlyTag)
    if (chooseAsset(nightly.assets, platform)) return nightly
  }
  return tag === 'latest' ? newestComplete(await server.recent(), platform) : undefined
}

/** llama.cpp's official release archive for this machine, checked by its digest. */
export function releaseSource(options: ReleaseOptions): BuildSource {
  const { directory, platform } = options
  const machine = `${platform.platform} ${platform.arch}`
  return {
    name: 'release',
    description: `release "${options.tag}" of ${options.repository} from ${options.apiUrl}`,
    wants: build =>
      options.tag === 'latest' || build.id.startsWith(`release-${options.tag}-`) || !/^b\d/.test(options.tag),
    async provide({ signal = new AbortController().signal, onProgress, explain }) {
      const server = createReleaseServer({ ...options, signal })
      let folder: string | undefined
      try {
        onProgress?.({ phase: 'downloading', subject: 'llama.cpp' })
        const release = await findRelease(server, options)
        const chosen = release && chooseAsset(release.assets, platform)
        if (!release || !chosen) {
          explain(`no archive for ${machine} in release "${options.tag}" of ${options.repository}`)
          return undefined
        }
        const { asset, kind } = chosen
        folder = await unfinishedFolder(directory)
        const archive = join(folder, asset.name)
        const { size: total } = asset
        await server.download(asset, archive, completed => {
          onProgress?.({
            phase: 'downloading',
            subject: `llama.cpp ${release.tag_name}`,
            fraction: total > 0 ? Math.min(1, completed / total) : undefined,
            completed,
            total
          })
        })
        onProgress?.({ phase: 'unpacking', subject: asset.name })
        const unpacked = await unfinishedFolder(folder)
        await unpackArchive(archive, unpacked)
        const inner = await contentFolder(unpacked)
        const found = programFolder(inner)
        if (found === undefined) throw new Error(`${asset.name} holds no llama-server`)
        signal.throwIfAborted()
        const id = `release-${release.tag_name}-${kind}`
        const target = join(directory, id)
        await rm(target, { recursive: true, force: true })
        await rename(found, target)
        const executables = programsIn(target)
        if (!executables) throw new Error(`llama-server of ${asset.name} may not be run`)
        return { id, kind, source: 'release', directory: target, executables, origin: server.addressOf(asset) }
      } finally {
        if (folder) await rm(folder, { recursive: true, force: true })
        await server.close()
      }
    }
  }
}

/** An archive holds either the files themselves or one folder with them. */
async function contentFolder(folder: string): Promise<string> {
  const entries = await readdir(folder, { withFileTypes: true })
  return entries.length === 1 && entries[0]!.isDirectory() ? join(folder, entries[0]!.name) : folder
}
