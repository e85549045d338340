import { readdir, rename, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Build } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { programFolder, programsIn } from '../build-files.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { unpackArchive } from './unpack-archive.ts'

/** An archive that cannot become a build. */
function unusable(archive: string, why: string, cause?: unknown): CorralError {
  return new CorralError('invalid_request', `${basename(archive)} cannot be used: ${why}`, { cause })
}

async function unpacked(archive: string, work: string, { signal, onProgress }: Waiting): Promise<string> {
  onProgress?.({ phase: 'unpacking', subject: basename(archive) })
  const folder = await unfinishedFolder(work)
  try {
    await unpackArchive(archive, folder)
  } catch (error) {
    if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
      throw new CorralError('insufficient_storage', `The disk is full: ${basename(archive)} does not fit unpacked.`, {
        cause: error
      })
    }
    throw unusable(archive, `it is damaged or refused (${messageOf(error)}).`, error)
  }
  signal?.throwIfAborted()
  // An archive holds either the files themselves or one folder with them.
  const entries = await readdir(folder, { withFileTypes: true })
  return entries.length === 1 && entries[0]!.isDirectory() ? join(folder, entries[0]!.name) : folder
}

/**
 * Unpacks a build's archive, and those with its libraries into the same folder, and puts it where builds lie; what was
 * there under that id is replaced. Nothing is left behind when it fails.
 * @param archives the one with llama-server first
 * @param work an unfinished folder
 * @param name gives the build's id, by the name of the folder that the archive holds
 * @throws CorralError `invalid_request` for an archive that is damaged, dangerous or no build; `insufficient_storage`
 */
export async function placeArchives(
  archives: readonly string[],
  { directory, work, name }: { directory: string; work: string; name: (inner: string) => string },
  waiting: Waiting
): Promise<{ id: string; directory: string; executables: Build['executables'] }> {
  const [main, ...companions] = archives as [string, ...string[]]
  const inner = await unpacked(main, work, waiting)
  const found = programFolder(inner)
  if (found === undefined) throw unusable(main, 'it holds no llama-server.')
  for (const companion of companions) {
    const libraries = await unpacked(companion, work, waiting)
    const there = new Set(await readdir(found))
    for (const file of await readdir(libraries)) {
      if (!there.has(file)) await rename(join(libraries, file), join(found, file))
    }
  }
  if (!programsIn(found)) throw unusable(main, 'its llama-server may not be run.')
  const id = name(basename(inner))
  const target = join(directory, id)
  await rm(target, { recursive: true, force: true })
  await rename(found, target)
  return { id, directory: target, executables: programsIn(target)! }
}
