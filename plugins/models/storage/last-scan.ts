import { lstatSync, readFileSync, statSync } from 'node:fs'
import { crc32 } from 'node:zlib'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import { version } from '../../../core/system/package-info.ts'
import { hasSafetensors, type KeptManifest, type ShortManifest } from './model-details.ts'
import { MANIFEST_FILE } from './model-folders.ts'

/** Raised when what is kept of a manifest changes its shape: files of before are then not read. */
const LAYOUT = 1
/**
 * Milliseconds. A change in the same tick of the file system's clock as the one before it leaves the same time, so what
 * changed just before it was read is read once more. FAT's clock has the longest ticks.
 */
const MAX_TICK = 2000

/** When a model's folder and manifest changed last (milliseconds; nobody can set these times), and the manifest's bytes. */
type Marks = readonly [folder: number, manifest: number, size: number]
interface Row {
  path: string
  marks: Marks
  kept: KeptManifest
}
/** A model in the file's list, with the length of its short manifest and, once it is read, where that begins. */
type ListedRow = [path: string, ...marks: Marks, safetensors: boolean, length: number, at?: number]

/**
 * What the start before this one read of each model, in a file of the cache. A model counts as it is there as long as its
 * folder and its manifest have not been touched; two calls of the system tell that, in the place of five, a parser and a
 * check of the whole manifest. The folders stay the only truth: the file may be deleted, damaged or old at any time.
 *
 * Behind a line with its checksum are a list of the models, and one text with their short manifests one after another:
 * each is cut out here, and parsed when somebody wants that model.
 */
export interface LastScan {
  /** Where a model's folder and manifest are now; undefined where there is no manifest. */
  marksOf(directory: string): Marks | undefined
  /** @param path `owner/name` of the model's folder */
  find(path: string, marks: Marks): KeptManifest | undefined
  /** Remembers a manifest that was read. @param marks taken before it was read */
  add(path: string, marks: Marks, manifest: ShortManifest): void
  /** Writes what was found and added, where that is not what the file has. */
  save(log: Pick<FastifyBaseLogger, 'warn'>): Promise<void>
}

/**
 * @param models the folder of the models, as an absolute path
 * @param now the time at which the folders are read
 */
export function openLastScan(file: string, models: string, now = Date.now()): LastScan {
  const identity = `${JSON.stringify({ layout: LAYOUT, version, models })} `
  const { rows, textOf } = rowsIn(file, identity)
  let next: Row[] = []
  let found = 0
  return {
    marksOf(directory) {
      try {
        const manifest = lstatSync(`${directory}/${MANIFEST_FILE}`, { throwIfNoEntry: false })
        if (!manifest?.isFile()) return undefined
        return [statSync(directory).ctimeMs, manifest.ctimeMs, manifest.size]
      } catch {
        // Who reads the folder then says what is wrong with it.
        return undefined
      }
    },
    find(path, marks) {
      const row = rows.get(path)
      if (!row || row[1] !== marks[0] || row[2] !== marks[1] || row[3] !== marks[2]) return undefined
      found++
      const kept = { text: textOf(row), safetensors: row[4] }
      next.push({ path, marks, kept })
      return kept
    },
    add(path, marks, manifest) {
      if (Math.max(marks[0], marks[1]) < now - MAX_TICK) next.push({ path, marks, kept: manifest })
    },
    async save(log) {
      if (found < rows.size || found < next.length) {
        const texts = next.map(({ kept }) => kept.text ?? JSON.stringify(kept))
        const list = next.map(({ path, marks, kept }, at) => [path, ...marks, hasSafetensors(kept), texts[at]!.length])
        const content = `${JSON.stringify(list)}\n${texts.join('')}`
        try {
          await writeFileAtomic(file, `${identity}${crc32(content)}\n${content}`, { mode: 0o600 })
        } catch (error) {
          log.warn(error, `${file} cannot be written, so the next start reads the manifests of all models`)
        }
      }
      rows.clear()
      next = []
    }
  }
}

/**
 * What the file says, by path, and the short manifests behind it; nothing where it is not of this corral and these models,
 * or damaged.
 */
function rowsIn(file: string, identity: string): { rows: Map<string, ListedRow>; textOf(row: ListedRow): string } {
  const rows = new Map<string, ListedRow>()
  let texts = ''
  const textOf = (row: ListedRow) => texts.slice(row[6], row[6]! + row[5])
  try {
    const bytes = readFileSync(file)
    const end = bytes.indexOf('\n')
    const content = bytes.subarray(end + 1)
    if (bytes.toString('utf8', 0, end) !== `${identity}${crc32(content)}`) return { rows, textOf }
    const behind = content.indexOf('\n') + 1
    texts = content.toString('utf8', behind)
    let at = 0
    for (const row of JSON.parse(content.toString('utf8', 0, behind)) as ListedRow[]) {
      row.push(at)
      at += row[5]
      rows.set(row[0], row)
    }
    return { rows, textOf }
  } catch {
    // Whatever is wrong with it, the folders tell the same.
    return { rows: new Map(), textOf }
  }
}
