import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { rm, stat } from 'node:fs/promises'
import { basename } from 'node:path'
import type { BuildCandidate, InstallRequest, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { unfinishedFolder } from '../builds-directory.ts'
import { placeArchives } from './place-archives.ts'

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
      return `archive-${tag}-${runtime?.name ?? 'build'}-${archiveMark(digest)}`
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
export function archiveMark(digest: string): string {
  return digest.slice(0, 8)
}
