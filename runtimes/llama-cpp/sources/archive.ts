import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { chmod, mkdir, readdir, rename, rm, stat } from 'node:fs/promises'
import { basename, dirname, join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Build, BuildCandidate, InstallRequest, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { programFolder, programsIn, unfinishedFolder } from '../builds-directory.ts'

export type ArchiveRequest = Extract<InstallRequest, { archive: string }>

interface Machine {
  platform: string
  arch: string
}

/**
 * What the name of a release's archive tells; the descriptor is absent where no pattern knows it. Pure.
 * @throws CorralError `invalid_request` for an archive of another platform, or libraries without their build
 */
export function readArchiveName(
  name: string,
  kinds: readonly RuntimeDescriptor[],
  machine: Machine
): { tag?: string; runtime?: RuntimeDescriptor } {
  if (!/\.(tar\.gz|tgz|zip)$/.test(name)) {
    throw new CorralError('invalid_request', `${name} is no archive that corral unpacks: .tar.gz, .tgz or .zip.`, {
      param: 'archive'
    })
  }
  if (name.startsWith('cudart-')) {
    throw new CorralError(
      'invalid_request',
      `${name} holds libraries that belong to a build. Give the build's own archive (llama-b…-cuda-….tar.gz) with it.`,
      { param: 'archive' }
    )
  }
  const matching = kinds.flatMap(runtime =>
    runtime.archives.filter(({ archive }) => archive.test(name)).map(pattern => ({ runtime, pattern }))
  )
  const own = matching.find(({ pattern }) => pattern.platform === machine.platform && pattern.arch === machine.arch)
  if (matching.length > 0 && !own) {
    const { platform, arch } = matching[0]!.pattern
    throw new CorralError(
      'invalid_request',
      `${name} is for ${platform} ${arch}; this machine is ${machine.platform} ${machine.arch}.`,
      { param: 'archive' }
    )
  }
  const tag = /^llama-(b\d+)-/.exec(name)?.[1]
  return { ...(tag && { tag }), ...(own && { runtime: own.runtime }) }
}

/**
 * SHA-256 of an archive on this disk, 64 hex digits.
 * @param expected what it must be, where that is known
 * @throws CorralError `invalid_request` when it cannot be read, `checksum_mismatch`
 */
export async function archiveDigest(path: string, expected: string | undefined, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256')
  try {
    const found = await stat(path)
    if (found.isDirectory()) {
      throw new CorralError(
        'invalid_request',
        `${path} is a folder. To use a llama.cpp build that is unpacked already, set CORRAL_LLAMA_CPP to it.`,
        { param: 'archive' }
      )
    }
    // Reading a pipe would wait for ever.
    if (!found.isFile()) throw new Error('it is no file')
    for await (const piece of createReadStream(path, { signal })) hash.update(piece)
  } catch (error) {
    signal?.throwIfAborted()
    if (error instanceof CorralError) throw error
    const why = isSystemError(error, 'ENOENT') ? 'there is no such file' : messageOf(error)
    throw new CorralError('invalid_request', `${path} cannot be read: ${why}.`, { param: 'archive', cause: error })
  }
  const digest = hash.digest('hex')
  if (expected === undefined || expected === digest) return digest
  throw new CorralError(
    'checksum_mismatch',
    `${path} has the SHA-256 ${digest}, not ${expected}. Fetch it again, or correct the digest.`
  )
}

/** The digest that somebody gave, in lower case. @throws CorralError `invalid_request` */
export function parseDigest(text: string | undefined): string | undefined {
  if (text === undefined) return undefined
  const digits = /^(?:sha256:)?([0-9a-f]{64})$/i.exec(text.trim())?.[1]?.toLowerCase()
  if (digits !== undefined) return digits
  throw new CorralError('invalid_request', `"sha256" must be 64 hex digits, not ${JSON.stringify(text)}.`, {
    param: 'sha256'
  })
}

/**
 * Makes a build, unproven, of a release archive on this disk, and of archives with its libraries. Nothing is left behind
 * when that fails.
 * @param known what the archive's name or the user told
 */
export async function unpackBuild(
  { archive, companions = [] }: ArchiveRequest,
  known: { tag?: string; runtime?: RuntimeDescriptor; digest: string },
  directory: string,
  waiting: Waiting
): Promise<BuildCandidate> {
  const { runtime, digest } = known
  const work = await unfinishedFolder(directory)
  try {
    const name = (inner: string) => {
      const tag = known.tag ?? /^llama-(b\d+)$/.exec(inner)?.[1] ?? 'renamed'
      return `archive-${tag}-${runtime?.name ?? 'build'}-${archiveSuffix(digest)}`
    }
    const placed = await placeArchives([archive, ...companions], { directory, work, name }, waiting)
    const origin = `${basename(archive)} (sha256 ${digest})`
    const kind = runtime?.kind ?? 'unknown'
    return { ...placed, kind, ...(runtime && { runtime: runtime.name }), source: 'archive', origin }
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}

/** What ends the ids of builds from this archive: the same archive is installed once. */
export function archiveSuffix(digest: string): string {
  return digest.slice(0, 8)
}

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

/** An entry of an archive, as far as its safety goes. */
export interface ArchiveEntry {
  path: string
  type: string
  /** Where a link leads. */
  linkpath?: string
}

/** Why an entry must not be unpacked; undefined when it stays inside the folder. Pure. */
export function dangerOf({ path, type, linkpath }: ArchiveEntry): string | undefined {
  const escapes = (name: string) => /^([\\/]|[A-Za-z]:)/.test(name) || name.split(/[\\/]/).includes('..')
  if (escapes(path)) return `"${path}" would lie outside its folder`
  if (type === 'SymbolicLink') {
    const target = linkpath ?? ''
    const leaves = posix.join(posix.dirname(path), target).split('/')[0] === '..'
    if (/^([\\/]|[A-Za-z]:)/.test(target) || target === '' || leaves) {
      return `the link "${path}" leads to "${target}", outside its folder`
    }
    return undefined
  }
  if (type === 'Link') return escapes(linkpath ?? '/') ? `the link "${path}" leads outside its folder` : undefined
  if (['File', 'OldFile', 'ContiguousFile', 'Directory', 'ExtendedHeader', 'GlobalExtendedHeader'].includes(type)) {
    return undefined
  }
  return `"${path}" is a ${type}`
}

/**
 * Unpacks a `.tar.gz`/`.tgz` or `.zip` into a folder that exists; nothing is written when an entry is dangerous.
 * @throws Error when the archive is damaged or dangerous
 */
export async function unpackArchive(archive: string, folder: string): Promise<void> {
  await (archive.endsWith('.zip') ? unpackZip(archive, folder) : unpackTar(archive, folder))
}

/**
 * Unpacks a part of a `.tar.gz` as `unpackArchive` does: the entries that `wanted` says, without the first folder of
 * their paths. What is not unpacked need not be harmless.
 */
export async function unpackPart(archive: string, folder: string, wanted: (path: string) => boolean): Promise<void> {
  await unpackTar(archive, folder, { wanted, strip: 1 })
}

async function unpackTar(
  archive: string,
  folder: string,
  { wanted = () => true, strip = 0 }: { wanted?: (path: string) => boolean; strip?: number } = {}
): Promise<void> {
  const tar = await import('tar')
  const dangers: string[] = []
  await tar.t({
    file: archive,
    strict: true,
    filter: wanted,
    onReadEntry(entry) {
      // Without its first folder, a link that stays inside may lead out.
      const link = strip > 0 && entry.type.endsWith('Link')
      const danger = link
        ? `"${entry.path}" is a link`
        : dangerOf({ path: entry.path, type: entry.type, linkpath: entry.linkpath })
      if (danger !== undefined) dangers.push(danger)
    }
  })
  if (dangers.length > 0) throw new Error(`The archive is refused: ${dangers[0]}.`)
  await tar.x({ file: archive, cwd: folder, strict: true, preserveOwner: false, filter: wanted, strip })
}

async function unpackZip(archive: string, folder: string): Promise<void> {
  // yauzl itself refuses names that leave the folder.
  const { openPromise } = await import('yauzl')
  const zip = await openPromise(archive, { lazyEntries: true, autoClose: false })
  try {
    for await (const entry of zip.eachEntry()) {
      const mode = entry.externalFileAttributes >>> 16
      const type = (mode & 0o170000) === 0o120000 ? 'SymbolicLink' : entry.fileName.endsWith('/') ? 'Directory' : 'File'
      const danger =
        type === 'SymbolicLink' ? `"${entry.fileName}" is a link` : dangerOf({ path: entry.fileName, type })
      if (danger !== undefined) throw new Error(`The archive is refused: ${danger}.`)
      const path = join(folder, entry.fileName)
      await mkdir(type === 'Directory' ? path : dirname(path), { recursive: true })
      if (type === 'Directory') continue
      await pipeline(await zip.openReadStreamPromise(entry), createWriteStream(path))
      if ((mode & 0o111) !== 0) await chmod(path, 0o755)
    }
  } finally {
    zip.close()
  }
}
