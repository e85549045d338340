import { createWriteStream, existsSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Build, ConversionTools } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { messageOf } from '../../../core/errors.ts'
import { unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { unpackPart } from './archive.ts'
import { CONVERTER, type FetchOptions, fetchConverter } from './llama-source.ts'
import { releaseTag } from './release.ts'
import { createReleaseServer, type ReleaseServerOptions } from './release-server.ts'

export type Converter = Pick<ConversionTools, 'directory' | 'version' | 'mismatch'>

/** Finds or fetches the converter for a build. @throws Error when none can be had */
export type FindConverter = (build: Build, waiting: Waiting) => Promise<Converter>

export interface ConverterOptions {
  /** Where builds lie. */
  directory: string
  release: Omit<ReleaseServerOptions, 'signal'>
  source: Omit<FetchOptions, 'work'>
}

const SCRIPT = 'convert_hf_to_gguf.py'
const isConverter = (folder: string) =>
  existsSync(join(folder, SCRIPT)) && existsSync(join(folder, 'gguf-py')) && existsSync(join(folder, 'requirements'))

/** The converter that lies with a build: kept in its folder, or in the source tree that it was compiled in. */
function converterBeside(directory: string): string | undefined {
  const places = [join(directory, 'converter'), directory, join(directory, '..'), join(directory, '..', '..')]
  return places.find(isConverter)
}

/** Of the engine's own version where that can be had, else the one of the pinned source. */
export function createFindConverter(options: ConverterOptions): FindConverter {
  return async (build, waiting) => {
    if (build.converter && isConverter(build.converter.directory)) return build.converter
    const tag = releaseTag(build.id)
    const beside = converterBeside(build.directory)
    if (beside !== undefined) return { directory: beside, version: tag ?? build.version }
    let failure: unknown
    if (tag !== undefined) {
      const target = join(build.directory, 'converter')
      try {
        await fetchReleaseConverter({ ...options.release, tag, directory: options.directory, target }, waiting)
        return { directory: target, version: tag }
      } catch (error) {
        waiting.signal?.throwIfAborted()
        failure = error
      }
    }
    const { directory, source } = options
    try {
      const pinned = await fetchConverter(
        { ...source, directory, work: join(directory, `${WORK_FOLDER}-converter`) },
        waiting
      )
      return { ...pinned, ...mismatchOf(pinned.version, build, failure) }
    } catch (error) {
      waiting.signal?.throwIfAborted()
      const reasons = [...(failure === undefined ? [] : [messageOf(failure)]), messageOf(error)]
      throw new Error(reasons.join('; '), { cause: error })
    }
  }
}

function mismatchOf(version: string, build: Build, failure: unknown): { mismatch?: string } {
  const engine = build.version.split(/[ -]/)[0]
  if (version.replace(/^v/, '') === engine) return {}
  const why = failure === undefined ? '' : ` The engine's own could not be had: ${messageOf(failure)}.`
  return {
    mismatch: `Models are converted by the converter of llama.cpp ${version}, while the engine is ${build.version}.${why}`
  }
}

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
