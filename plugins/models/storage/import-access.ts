import { lstat, opendir, readlink, realpath } from 'node:fs/promises'
import { isAbsolute, join, relative, resolve, sep } from 'node:path'
import type { Caller } from '../../../core/contracts/callers.ts'
import { CorralError } from '../../../core/errors.ts'
import { type FileIdentity, isSameFile, openRegularFile, pathOfOpened } from '../../../core/system/regular-file.ts'
import { refuseSource } from './model-files.ts'

/** Maximum entries of a folder that an import lists. A model's folder has a few dozen. */
const MAX_ENTRIES = 10_000
/** Symbolic links on the way to one file. Linux has the same limit. */
const MAX_LINKS = 40

/** A file that the import may read. */
interface FoundFile extends FileIdentity {
  /** Absolute, without symbolic links. */
  source: string
  /** The path of the opened file, if the system reports it. */
  opened?: string
  size: number
}

/** The part of the machine's disk that an import may read. */
export interface ImportAccess {
  /** Resolves symbolic links. @throws CorralError `path_not_allowed`, whether or not anything is there */
  locate(path: string): Promise<string>
  /** Opens the regular file at a path to identify it. @throws as `locate` does, and `invalid_request` */
  find(path: string): Promise<FoundFile>
}

/** For the user who runs the server: everything that this user can read. */
export const EVERYWHERE: ImportAccess = {
  locate: path => realpath(path),
  find: async path => await identify(await realpath(path))
}

/** Everything for the private socket and corral itself, otherwise only what is below `roots`. */
export const importAccess = (caller: Caller | undefined, roots: readonly string[]): ImportAccess =>
  caller && !caller.isLocal ? within(roots) : EVERYWHERE

function within(named: readonly string[]): ImportAccess {
  /** Follows links one by one, so that it never reveals whether something outside the roots exists. */
  async function locate(path: string): Promise<string> {
    // Compare as text first: a path outside is refused before the disk is touched.
    if (!named.some(root => stepsBelow(root, path))) throw notAllowed(path, named)
    const roots = await realRoots(named)
    let place = findPlace(path, roots)
    let links = 0
    while (place && place.steps.length > 0) {
      const [step, ...rest] = place.steps as [string, ...string[]]
      const next = join(place.at, step)
      if (!(await lstat(next)).isSymbolicLink()) {
        place = { at: next, steps: rest }
        continue
      }
      if (++links > MAX_LINKS) throw refuseSource(`${path} leads through more than ${MAX_LINKS} symbolic links.`)
      const target = findPlace(resolve(place.at, await readlink(next)), roots)
      place = target && { at: target.at, steps: [...target.steps, ...rest] }
    }
    if (!place) throw notAllowed(path, named)
    return place.at
  }

  /** A folder may be swapped for a link between the check and the opening, so check the file that was opened. */
  async function isBelow(path: string, { opened, ...found }: FoundFile): Promise<boolean> {
    if (opened !== undefined) return (await realRoots(named)).some(({ real }) => stepsBelow(real, opened) !== undefined)
    const again = await locate(path)
    return again === found.source && isSameFile(await lstat(again, { bigint: true }), found)
  }

  return {
    locate,
    async find(path) {
      const opened = await identify(await locate(path))
      if (!(await isBelow(path, opened))) throw notAllowed(path, named)
      return opened
    }
  }
}

async function identify(source: string): Promise<FoundFile> {
  const file = await openRegularFile(source)
  try {
    const { dev, ino, size } = await file.stat({ bigint: true })
    const opened = await readlink(pathOfOpened(file, source)).catch(() => undefined)
    return { source, size: Number(size), dev, ino, ...(opened !== undefined && { opened }) }
  } finally {
    await file.close()
  }
}

async function realRoots(named: readonly string[]) {
  const roots: { named: string; real: string }[] = []
  for (const root of named) {
    // A root that does not exist, for example on an unmounted disk, has nothing to import.
    const real = await realpath(root).catch(() => undefined)
    if (real !== undefined) roots.push({ named: root, real })
  }
  return roots
}

/** Returns a folder without symbolic links in its path, and the steps from there. */
function findPlace(path: string, roots: Awaited<ReturnType<typeof realRoots>>) {
  for (const { named, real } of roots) {
    const steps = stepsBelow(real, path) ?? stepsBelow(named, path)
    if (steps) return { at: real, steps }
  }
  return undefined
}

/** Returns the steps from a folder to a path in it, or undefined if the path is outside. Compares text only. */
function stepsBelow(folder: string, path: string): string[] | undefined {
  const way = relative(folder, resolve(path))
  if (way === '..' || way.startsWith(`..${sep}`) || isAbsolute(way)) return undefined
  return way.split(sep).filter(step => step !== '')
}

function notAllowed(path: string, roots: readonly string[]): CorralError {
  const allowed =
    roots.length === 0 ? 'storage.import_roots names none' : `storage.import_roots names ${roots.join(', ')}`
  return new CorralError(
    'path_not_allowed',
    `${path} is not in a folder that models may be imported from over the network: ${allowed}. Put the model there, add ` +
      'its folder to storage.import_roots in config.yaml, or import it with "corral import" as the user who runs the ' +
      'server, on its machine.',
    { param: 'path' }
  )
}

/** Lists a folder's entries with their kind. Symbolic links are `link`. */
export async function listEntries(
  folder: string
): Promise<{ name: string; kind: 'file' | 'folder' | 'link' | 'other' }[]> {
  const entries: Awaited<ReturnType<typeof listEntries>> = []
  for await (const entry of await opendir(folder)) {
    if (entries.length === MAX_ENTRIES) {
      throw refuseSource(`${folder} has more than ${MAX_ENTRIES} files. Name the model's own file or folder.`)
    }
    const kind = entry.isFile() ? 'file' : entry.isDirectory() ? 'folder' : entry.isSymbolicLink() ? 'link' : 'other'
    entries.push({ name: entry.name, kind })
  }
  return entries
}
