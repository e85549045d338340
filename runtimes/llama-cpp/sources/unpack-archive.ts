import { createWriteStream } from 'node:fs'
import { chmod, mkdir } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'

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
