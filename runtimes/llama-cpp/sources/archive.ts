import { createWriteStream } from 'node:fs'
import { chmod, mkdir, readdir, rename, rm, stat } from 'node:fs/promises'
import { basename, dirname, join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Build, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { archiveTag } from '../kinds/scores.ts'
import { programFolder, programsIn } from '../programs.ts'
import { fileDigest } from '../verify-build.ts'

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
    digest = await fileDigest(path, signal)
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

const PLAIN_ENTRIES = ['File', 'OldFile', 'ContiguousFile', 'Directory', 'ExtendedHeader', 'GlobalExtendedHeader']
const isAbsolute = (path: string) => /^([\\/]|[A-Za-z]:)/.test(path)

/** Returns why an entry of an archive must not be unpacked, or undefined if it stays inside the folder. Pure. */
export function findDanger(entry: { path: string; type: string; linkpath?: string | undefined }): string | undefined {
  const { path, type, linkpath = '' } = entry
  const escapes = (name: string) => isAbsolute(name) || name.split(/[\\/]/).includes('..')
  if (escapes(path)) return `"${path}" would lie outside its folder`
  if (type === 'SymbolicLink') {
    const leaves = posix.join(posix.dirname(path), linkpath).split('/')[0] === '..'
    if (!isAbsolute(linkpath) && linkpath !== '' && !leaves) return undefined
    return `the link "${path}" leads to "${linkpath}", outside its folder`
  }
  if (type === 'Link') {
    return linkpath === '' || escapes(linkpath) ? `the link "${path}" leads outside its folder` : undefined
  }
  return PLAIN_ENTRIES.includes(type) ? undefined : `"${path}" is a ${type}`
}

/** Unpacks a `.tar.gz`, `.tgz` or `.zip` into a folder. @throws Error if it is damaged or dangerous */
export async function unpackArchive(archive: string, folder: string): Promise<void> {
  await (archive.endsWith('.zip') ? unpackZip(archive, folder) : unpackTar(archive, folder))
}

/** Unpacks a `.tar.gz`, or only the wanted entries of it without the first folder of their paths. */
export async function unpackTar(archive: string, folder: string, part?: (path: string) => boolean): Promise<void> {
  const tar = await import('tar')
  const filter = part ?? (() => true)
  const dangers: string[] = []
  await tar.t({
    file: archive,
    strict: true,
    filter,
    onReadEntry(entry) {
      // Once the first folder is stripped, a link that stayed inside may lead out.
      const danger = part && entry.type.endsWith('Link') ? `"${entry.path}" is a link` : findDanger(entry)
      if (danger !== undefined) dangers.push(danger)
    }
  })
  if (dangers.length > 0) throw new Error(`The archive is refused: ${dangers[0]}.`)
  await tar.x({ file: archive, cwd: folder, strict: true, preserveOwner: false, filter, strip: part ? 1 : 0 })
}

async function unpackZip(archive: string, folder: string): Promise<void> {
  // yauzl itself refuses names that leave the folder.
  const { openPromise } = await import('yauzl')
  const zip = await openPromise(archive, { lazyEntries: true, autoClose: false })
  try {
    for await (const entry of zip.eachEntry()) {
      const { fileName } = entry
      const mode = entry.externalFileAttributes >>> 16
      const isLink = (mode & 0o170000) === 0o120000
      const danger = isLink ? `"${fileName}" is a link` : findDanger({ path: fileName, type: 'File' })
      if (danger !== undefined) throw new Error(`The archive is refused: ${danger}.`)
      const path = join(folder, fileName)
      await mkdir(fileName.endsWith('/') ? path : dirname(path), { recursive: true })
      if (fileName.endsWith('/')) continue
      await pipeline(await zip.openReadStreamPromise(entry), createWriteStream(path))
      if ((mode & 0o111) !== 0) await chmod(path, 0o755)
    }
  } finally {
    zip.close()
  }
}
