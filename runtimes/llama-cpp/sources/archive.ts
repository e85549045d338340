import { readdir, rename, rm, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Build, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'
import { fileDigest } from '../../../core/system/file-digests.ts'
import { unpackArchive } from '../../../core/system/unpack.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { archiveTag } from '../kinds/scores.ts'
import { programFolder, programsIn } from '../programs.ts'

const invalid = (message: string, param = 'archive', cause?: unknown) =>
  new CorralError('invalid_request', message, { param, cause })

/** Reads release and kind from an archive's name. @throws CorralError `invalid_request` for other platforms. Pure. */
export function readArchiveName(
  name: string,
  kinds: readonly RuntimeDescriptor[],
  machine: Pick<Hardware, 'platform' | 'arch'>
): { tag?: string | undefined; runtime?: RuntimeDescriptor | undefined } {
  if (!/\.(tar\.gz|tgz|zip)$/.test(name)) {
    throw invalid(`${name} is not an archive that corral can unpack. Use a .tar.gz, .tgz or .zip file.`)
  }
  const needed = 'Also give the archive of the build that needs them (llama-b…-cuda-….tar.gz).'
  if (name.startsWith('cudart-')) throw invalid(`${name} contains only libraries. ${needed}`)
  const matching = kinds.flatMap(runtime =>
    runtime.archives.filter(({ archive }) => archive.test(name)).map(pattern => ({ runtime, pattern }))
  )
  const own = matching.find(({ pattern }) => pattern.platform === machine.platform && pattern.arch === machine.arch)
  if (matching[0] && !own) {
    const { platform, arch } = matching[0].pattern
    throw invalid(`${name} is for ${platform} ${arch}; this machine is ${machine.platform} ${machine.arch}.`)
  }
  return { tag: archiveTag(name), runtime: own?.runtime }
}

/** Returns an archive's SHA-256. @throws CorralError `invalid_request`, or `checksum_mismatch` if it is another */
export async function archiveDigest(path: string, expected: string | undefined, signal?: AbortSignal): Promise<string> {
  let digest: string
  try {
    const found = await stat(path)
    if (found.isDirectory()) {
      throw invalid(`${path} is a folder. To use an unpacked llama.cpp build, set CORRAL_LLAMA_CPP to it.`)
    }
    // Reading a pipe would wait forever.
    if (!found.isFile()) throw new Error('it is not a file')
    digest = await fileDigest(path, { signal })
  } catch (error) {
    signal?.throwIfAborted()
    if (error instanceof CorralError) throw error
    const why = isSystemError(error, 'ENOENT') ? 'there is no such file' : errorMessage(error)
    throw invalid(`${path} cannot be read: ${why}.`, 'archive', error)
  }
  if (expected === undefined || expected === digest) return digest
  const text = `${path} has the SHA-256 ${digest}, not ${expected}. Fetch it again, or correct the digest.`
  throw new CorralError('checksum_mismatch', text)
}

/** Normalizes a digest given by the user to lower case. @throws CorralError `invalid_request` */
export function parseDigest(text: string | undefined): string | undefined {
  if (text === undefined) return undefined
  const digits = /^(?:sha256:)?([0-9a-f]{64})$/i.exec(text.trim())?.[1]?.toLowerCase()
  if (digits !== undefined) return digits
  throw invalid(`"sha256" must be 64 hex digits, not ${JSON.stringify(text)}.`, 'sha256')
}

const unusable = (archive: string, why: string, cause?: unknown) =>
  new CorralError('invalid_request', `${basename(archive)} cannot be used: ${why}`, { cause })

async function unpack(archive: string, work: string, { signal, onProgress }: Waiting): Promise<string> {
  onProgress?.({ phase: 'unpacking', subject: basename(archive) })
  const folder = await unfinishedFolder(work)
  try {
    await unpackArchive(archive, folder)
  } catch (error) {
    throw (
      diskRefusal(error, `${basename(archive)} was not unpacked`, 'home') ??
      unusable(archive, `it is damaged or refused (${errorMessage(error)}).`, error)
    )
  }
  signal?.throwIfAborted()
  // An archive contains the files themselves or one folder with them.
  const entries = await readdir(folder, { withFileTypes: true })
  return entries.length === 1 && entries[0]!.isDirectory() ? join(folder, entries[0]!.name) : folder
}

/**
 * Unpacks a build's archive, then those of its libraries into the same folder, and moves it among the builds. Leaves
 * nothing behind on failure.
 * @param name makes the build's id from the name of the folder in the archive
 * @throws CorralError `invalid_request` for an archive that is damaged, dangerous or not a build
 */
export async function placeArchives(
  archives: readonly string[],
  directory: string,
  name: (inner: string) => string,
  waiting: Waiting
): Promise<{ id: string; directory: string; executables: Build['executables'] }> {
  const [main, ...companions] = archives as [string, ...string[]]
  const work = await unfinishedFolder(directory)
  try {
    const inner = await unpack(main, work, waiting)
    const found = programFolder(inner)
    if (found === undefined) throw unusable(main, 'it has no llama-server.')
    for (const companion of companions) {
      const libraries = await unpack(companion, work, waiting)
      const existing = new Set(await readdir(found))
      for (const file of await readdir(libraries)) {
        if (!existing.has(file)) await rename(join(libraries, file), join(found, file))
      }
    }
    if (!programsIn(found)) throw unusable(main, 'its llama-server is not executable.')
    const id = name(basename(inner))
    const target = join(directory, id)
    await rm(target, { recursive: true, force: true })
    await rename(found, target)
    return { id, directory: target, executables: programsIn(target)! }
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}
