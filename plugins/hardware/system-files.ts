import { open, readdir, realpath, stat } from 'node:fs/promises'
import { join, sep } from 'node:path'

/** Bytes of a file that are read at most; the largest that is needed, a list of PCI ids, has 1.5 MB. */
const MOST_READ = 4 * 2 ** 20

/** The files of a machine, by their absolute paths there. What is missing or may not be read is undefined or empty. */
export interface SystemFiles {
  text(path: string): Promise<string | undefined>
  /** Names in a folder, in natural order: `card2` before `card10`. */
  names(folder: string): Promise<string[]>
  exists(path: string): Promise<boolean>
  /** Where links lead, as a path of that machine. */
  real(path: string): Promise<string | undefined>
}

/**
 * @param root folder that holds the machine's files; empty is this machine. With a root, links that lead out of it lead
 * nowhere.
 */
export function systemFiles(root: string): SystemFiles {
  const base = root === '' ? Promise.resolve('') : realpath(root).catch(() => root)

  /** The file of this machine that stands for it. */
  async function place(path: string): Promise<string> {
    const from = await base
    const real = await realpath(join(from, path))
    if (from !== '' && real !== from && !real.startsWith(from.endsWith(sep) ? from : from + sep)) {
      throw new Error(`${path} leads out of ${from}`)
    }
    return real
  }
  const orNothing = async <T>(work: Promise<T>): Promise<T | undefined> => {
    try {
      return await work
    } catch {
      // Absent, or not for this user: no source, that is all.
      return undefined
    }
  }

  async function read(path: string): Promise<string> {
    const file = await open(await place(path), 'r')
    try {
      const pieces: Buffer[] = []
      let size = 0
      // Files of the kernel say that they are empty: they are read until nothing more comes.
      while (size < MOST_READ) {
        const { bytesRead, buffer } = await file.read(Buffer.alloc(65_536), 0, 65_536)
        if (bytesRead === 0) break
        pieces.push(buffer.subarray(0, bytesRead))
        size += bytesRead
      }
      return Buffer.concat(pieces).toString('utf8')
    } finally {
      await file.close()
    }
  }

  return {
    text: path => orNothing(read(path)),
    names: async folder => {
      const names = (await orNothing(place(folder).then(at => readdir(at)))) ?? []
      return names.sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))
    },
    exists: async path => (await orNothing(place(path).then(at => stat(at)))) !== undefined,
    real: async path => {
      const at = await orNothing(place(path))
      return at === undefined ? undefined : at.slice((await base).length)
    }
  }
}
