import { createWriteStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { CONVERTER } from './llama-source.ts'
import { createReleaseServer, type ReleaseServerOptions } from './release-server.ts'
import { unpackPart } from './unpack-archive.ts'

/**
 * Fetches the converter that belongs to a release, out of the archive of its source, and puts it into `target`.
 * @throws Error when it cannot be had
 */
export async function fetchReleaseConverter(
  options: Omit<ReleaseServerOptions, 'signal'> & { tag: string; directory: string; target: string },
  { signal = new AbortController().signal, onProgress }: Waiting
): Promise<void> {
  const { tag, directory, target } = options
  const server = createReleaseServer({ ...options, signal })
  const folder = await unfinishedFolder(directory)
  try {
    const archive = join(folder, 'source.tar.gz')
    const subject = `source of llama.cpp ${tag}`
    onProgress?.({ phase: 'downloading', subject })
    await pipeline(await server.source(tag), createWriteStream(archive), { signal })
    onProgress?.({ phase: 'unpacking', subject })
    const unpacked = await unfinishedFolder(folder)
    // One folder with the source in it; of that only what the converter consists of.
    await unpackPart(archive, unpacked, path => CONVERTER.includes(path.split('/')[1] ?? ''))
    signal.throwIfAborted()
    await rm(target, { recursive: true, force: true })
    await rename(unpacked, target)
  } finally {
    await rm(folder, { recursive: true, force: true })
    await server.close()
  }
}
