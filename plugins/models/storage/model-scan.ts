import {
  type Dirent,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync
} from 'node:fs'
import { rm } from 'node:fs/promises'
import { basename, dirname, join, sep } from 'node:path'
import { crc32 } from 'node:zlib'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import { errorMessage } from '../../../core/errors.ts'
import { bareName, modelKey } from '../../../core/models/model-name.ts'
import { version } from '../../../core/system/package-info.ts'
import {
  type CachedManifest,
  MANIFEST_FILE,
  type Manifest,
  parseManifest,
  type ShortManifest,
  shortManifest,
  withoutRevisions
} from './manifest.ts'
import { discardFolder, REVISION_MARK, removeEmptyFolders, STAGING_FOLDER } from './staging.ts'

/**
 * Reads all manifests, and removes the leftovers of crashes: staging folders, revisions that no manifest names, and
 * half-written manifests. An unusable manifest and its files stay as they are, and a warning is logged.
 *
 * It reads synchronously, since nothing is served yet: ten thousand manifests take 0.4 s this way, and 2.5 s with 32
 * asynchronous readers.
 * @param last the models that the previous start read: unchanged models are not read again
 */
export async function scanModels(models: string, log: FastifyBaseLogger, last?: LastScan) {
  mkdirSync(models, { recursive: true })
  // An unreadable models folder is an error, but an unreadable folder in it is only a warning.
  readdirSync(models)
  const found = new Map<string, { key: string; directory: string; manifest: CachedManifest }>()
  for (const owner of subfolders(models, log)) {
    const folder = join(models, owner)
    if (owner === STAGING_FOLDER) {
      await rm(folder, { recursive: true, force: true }).catch(error =>
        log.warn(error, `${folder}, left by an interrupted import or removal, cannot be deleted`)
      )
    }
    // Only valid owners' names: a disk has folders of its own, for example lost+found.
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(owner)) continue
    for (const name of subfolders(folder, log)) {
      const directory = `${folder}${sep}${name}`
      const path = `${owner}/${name}`
      // Taken before reading: anything that changes in between is read again at the next start.
      const marks = last?.readMarks(directory)
      const unchanged = marks && last?.find(path, marks)
      const manifest =
        unchanged ?? (await readModel(models, directory, log, short => marks && last?.add(path, marks, short)))
      if (!manifest) continue
      const key = path.toLowerCase()
      // A folder copied by hand may be there in two spellings. The first one counts.
      const first = found.get(key)
      if (first) log.warn(`${directory} is skipped: ${first.directory} is the same name in another case`)
      else found.set(key, { key, directory, manifest })
    }
  }
  return [...found.values()]
}

/** Reads a model's folder, and removes leftovers. @param onGood called if there was nothing to warn about */
async function readModel(
  models: string,
  directory: string,
  log: FastifyBaseLogger,
  onGood: (manifest: ShortManifest) => void
): Promise<ShortManifest | undefined> {
  const entries = listEntries(directory, log)
  const { manifest, fault } = readManifest(directory, entries)
  const isClear = fault === undefined && (await clearLeftovers(models, directory, entries, manifest, log))
  const folders = new Set(entries.filter(entry => entry.isDirectory()).map(entry => entry.name))
  const lost = (manifest?.variants ?? []).map(({ revision }) => revision).filter(revision => !folders.has(revision))
  const whole = manifest && withoutRevisions(manifest, new Set(lost))
  const problem = fault ?? (manifest && !whole ? `the folders of its files are gone: ${lost.join(', ')}` : undefined)
  if (problem !== undefined) {
    log.warn(`The model in ${directory} is skipped: ${join(directory, MANIFEST_FILE)} cannot be used: ${problem}`)
  }
  if (!whole) return undefined
  if (lost.length > 0) log.warn(`${directory} has lost the variants whose files were in ${lost.join(', ')}`)
  const short = shortManifest(whole)
  if (isClear && lost.length === 0) onGood(short)
  return short
}

function subfolders(folder: string, log: FastifyBaseLogger): string[] {
  const names: string[] = []
  for (const entry of listEntries(folder, log)) {
    if (entry.isDirectory()) names.push(entry.name)
    else if (entry.isSymbolicLink()) {
      const path = join(folder, entry.name)
      log.warn(`${path} is skipped: it is a symbolic link, and models are stored inside the models folder only`)
    }
  }
  return names.sort()
}

/** Lists a folder. If that fails, warns and returns nothing, since the other models are still served. */
function listEntries(folder: string, log: FastifyBaseLogger): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true })
  } catch (error) {
    log.warn(`${folder} is skipped: it cannot be read: ${errorMessage(error)}`)
    return []
  }
}

/** Reads a model's manifest. There is none if the model was never finished or its removal was interrupted. */
function readManifest(folder: string, entries: Dirent[]): { manifest?: Manifest; fault?: string } {
  const present = entries.find(entry => entry.name === MANIFEST_FILE)
  if (!present) return {}
  if (!present.isFile()) return { fault: 'it is not a regular file' }
  try {
    const { value: manifest, fault } = parseManifest(readFileSync(join(folder, MANIFEST_FILE), 'utf8'))
    if (!manifest) return { fault }
    const isHere = modelKey(manifest) === `${basename(dirname(folder))}/${basename(folder)}`.toLowerCase()
    return isHere ? { manifest } : { fault: `it is the manifest of ${bareName(manifest)}` }
  } catch (error) {
    return { fault: errorMessage(error) }
  }
}

/** @returns false, after a warning, if some cannot be deleted */
async function clearLeftovers(
  models: string,
  folder: string,
  entries: Dirent[],
  manifest: Manifest | undefined,
  log: FastifyBaseLogger
): Promise<boolean> {
  const named = new Set(manifest?.variants.map(variant => variant.revision))
  try {
    for (const entry of entries) {
      const path = join(folder, entry.name)
      if (entry.isDirectory() && entry.name === `${MANIFEST_FILE}.lock`) rmdirSync(path)
      else if (entry.isDirectory() && !named.has(entry.name) && existsSync(join(path, REVISION_MARK))) {
        await discardFolder(models, path)
      } else if (entry.isFile() && /^manifest\.json\.\d+$/.test(entry.name)) rmSync(path)
    }
    if (!manifest) await removeEmptyFolders(folder)
    return true
  } catch (error) {
    log.warn(error, `Leftovers of an interrupted import or removal in ${folder} cannot be deleted`)
    return false
  }
}

/** Raise this when the form of the file changes: older files are then ignored. */
const LAYOUT = 3
/** Changes within one tick of the file system's clock have the same time. FAT has the longest ticks. */
const MAX_TICK_MS = 2000

/** When a model's folder and manifest last changed (ctime, which users cannot set), and the manifest's size. */
type ChangeMarks = readonly [folder: number, manifest: number, size: number]
interface Row {
  path: string
  marks: ChangeMarks
  kept: CachedManifest
}

export type LastScan = ReturnType<typeof openLastScan>

/**
 * A cache file with each model as the previous start read it. An entry is valid while the model's folder and manifest
 * are unchanged. Checking that takes two system calls instead of five, a parser and a schema check. The folders remain
 * the only source of truth: the file may be deleted, damaged or outdated at any time.
 *
 * The file has a line with a checksum, a line with the list of models, and a line for each short manifest, which is
 * parsed when it is first needed.
 * @param models absolute path of the models folder
 */
export function openLastScan(file: string, models: string, now = Date.now()) {
  const identity = JSON.stringify({ layout: LAYOUT, version, models })
  const known = readRows(file, identity)
  let next: Row[] = []
  let found = 0
  return {
    /** Returns when a model's folder and manifest last changed, or undefined if there is no manifest. */
    readMarks(directory: string): ChangeMarks | undefined {
      try {
        const manifest = lstatSync(`${directory}/${MANIFEST_FILE}`, { throwIfNoEntry: false })
        if (!manifest?.isFile()) return undefined
        return [statSync(directory).ctimeMs, manifest.ctimeMs, manifest.size]
      } catch {
        // Reading the folder reports the problem.
        return undefined
      }
    },
    find(path: string, marks: ChangeMarks): CachedManifest | undefined {
      const row = known.get(path)
      if (!row || row.marks.some((mark, at) => mark !== marks[at])) return undefined
      found++
      next.push(row)
      return row.kept
    },
    /** Records a manifest that was read. @param marks taken before it was read */
    add(path: string, marks: ChangeMarks, manifest: ShortManifest): void {
      if (Math.max(marks[0], marks[1]) < now - MAX_TICK_MS) next.push({ path, marks, kept: manifest })
    },
    async save(log: Pick<FastifyBaseLogger, 'warn'>): Promise<void> {
      if (found < known.size || found < next.length) {
        const list = next.map(({ path, marks }) => [path, marks])
        const texts = next.map(({ kept }) => kept.text ?? JSON.stringify(kept))
        const content = [JSON.stringify(list), ...texts].join('\n')
        try {
          await writeFileAtomic(file, `${identity} ${crc32(content)}\n${content}`, { mode: 0o600 })
        } catch (error) {
          log.warn(error, `${file} cannot be written, so the next start will read all manifests`)
        }
      }
      known.clear()
      next = []
    }
  }
}

/** Reads the file. Returns nothing if it is damaged or belongs to another version or models folder. */
function readRows(file: string, identity: string): Map<string, Row> {
  try {
    const text = readFileSync(file, 'utf8')
    const end = text.indexOf('\n')
    const content = text.slice(end + 1)
    if (text.slice(0, end) !== `${identity} ${crc32(content)}`) return new Map()
    const [list, ...manifests] = content.split('\n')
    const rows = JSON.parse(list!) as [path: string, marks: ChangeMarks][]
    return new Map(rows.map(([path, marks], at) => [path, { path, marks, kept: { text: manifests[at]! } }]))
  } catch {
    // Fall back to the folders.
    return new Map()
  }
}
