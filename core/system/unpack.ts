import { createWriteStream } from 'node:fs'
import { chmod, mkdir } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'

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
